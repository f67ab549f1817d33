// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <string>

namespace refrain::detail {

/// Throws `DivergenceError`: the replay took another path through the body than the first run.
[[noreturn]] inline void fail_other_path(const std::string& what, const std::string& where = "",
                                         const std::string& then = "") {
  throw DivergenceError(what, where, then,
                        "likely cause: forward read state that changed in between (a counter, a "
                        "cache, is_training()).",
                        "see docs/reading_a_divergence.md");
}

}  // namespace refrain::detail
