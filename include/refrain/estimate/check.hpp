// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

namespace refrain::estimate::detail {

inline void at_least_one(std::string_view what, std::int64_t value) {
  if (value >= 1) return;
  throw OptionError(fmt::format("estimate: {} is {}, it must be at least 1.", what, value));
}

/// `whole` is cut into `parts` equal parts.
inline void divides(std::string_view what, std::int64_t whole, std::string_view by,
                    std::int64_t parts) {
  if (whole % parts == 0) return;
  throw OptionError(
      fmt::format("estimate: {} {} cannot be cut into {} {}.", what, whole, parts, by),
      fmt::format("choose a number that divides {}.", whole));
}

[[nodiscard]] inline std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t all = 1;
  for (const std::int64_t factor : factors) {
    if (factor != 0 && all > std::numeric_limits<std::int64_t>::max() / factor) {
      throw OptionError("estimate: these sizes need more bytes than 64 bits can count.",
                        "look for a batch, sequence or width in the wrong unit.");
    }
    all *= factor;
  }
  return all;
}

}  // namespace refrain::estimate::detail
