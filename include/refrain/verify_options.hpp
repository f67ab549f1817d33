// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <optional>

namespace refrain {

/// How `verify` compares.
class VerifyOptions {
 public:
  /// Lets values differ by so much, relative and absolute. Default: 0, the same bits.
  VerifyOptions& tolerance(double value) {
    if (!(value >= 0)) {
      throw OptionError(fmt::format("verify with a tolerance of {}, which is no distance.", value),
                        "0 asks for the same bits.");
    }
    tolerance_ = value;
    return *this;
  }
  /// Seeds the random generators before each step. Default: both steps start from the generators as
  /// they are.
  VerifyOptions& seed(std::uint64_t value) {
    seed_ = value;
    return *this;
  }
  [[nodiscard]] double tolerance() const { return tolerance_; }
  [[nodiscard]] const std::optional<std::uint64_t>& seed() const { return seed_; }

 private:
  double tolerance_ = 0.0;
  std::optional<std::uint64_t> seed_;
};

}  // namespace refrain
