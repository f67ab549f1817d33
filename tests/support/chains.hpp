// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/policy.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <ostream>
#include <string>

namespace refrain {

/// How GoogleTest shows the values of this library.
inline void PrintTo(const Segment& segment, std::ostream* out) { *out << to_string(segment); }
inline void PrintTo(const Segmentation& cut, std::ostream* out) { *out << to_string(cut); }

}  // namespace refrain

namespace support {

/// A chain of equal stages called "0", "1", …
inline refrain::Chain chain_of(std::int64_t stages, refrain::Tail tail = refrain::Tail::Loss) {
  refrain::Chain chain{{}, tail};
  for (std::int64_t i = 0; i < stages; ++i) {
    chain.stages.push_back({std::to_string(i), "void", typeid(void)});
  }
  return chain;
}

/// How a policy cuts a chain of so many stages, as text.
inline std::string cut_text(const refrain::policy::AnyPolicy& policy, std::int64_t stages,
                            refrain::Tail tail = refrain::Tail::Loss) {
  return fmt::format("{}", policy.cut(chain_of(stages, tail)));
}

}  // namespace support
