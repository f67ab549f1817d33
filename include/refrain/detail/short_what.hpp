// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace refrain::detail {

/// What an exception says, without the stack trace that LibTorch's own carry.
[[nodiscard]] inline std::string short_what(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace refrain::detail
