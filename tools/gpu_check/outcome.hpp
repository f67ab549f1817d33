// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpu_check {

/// A number and what it should be.
struct Measured {
  enum class Goal { AtMost, AtLeast };

  double value = 0;
  std::string unit;
  Goal goal = Goal::AtMost;
  double bound = 0;

  [[nodiscard]] bool meets_goal() const {
    return goal == Goal::AtMost ? value <= bound : value >= bound;
  }
};

/// What one check found.
struct Outcome {
  enum class Kind { Passed, Missed, Failed, Skipped };

  Kind kind = Kind::Passed;
  std::string text;  ///< Why, or what else is worth knowing.
  std::optional<Measured> measured = {};
};

[[nodiscard]] inline Outcome passed(std::string text = "") {
  return {Outcome::Kind::Passed, std::move(text)};
}
[[nodiscard]] inline Outcome failed(std::string why) {
  return {Outcome::Kind::Failed, std::move(why)};
}
[[nodiscard]] inline Outcome skipped(std::string why) {
  return {Outcome::Kind::Skipped, std::move(why)};
}

/// A goal that is missed is no wrong result, so it is told apart from a failure.
[[nodiscard]] inline Outcome measured(Measured number, std::string text = "") {
  const auto kind = number.meets_goal() ? Outcome::Kind::Passed : Outcome::Kind::Missed;
  return {kind, std::move(text), std::move(number)};
}
[[nodiscard]] inline Outcome at_most(double bound, double value, std::string unit,
                                     std::string text = "") {
  return measured({value, std::move(unit), Measured::Goal::AtMost, bound}, std::move(text));
}
[[nodiscard]] inline Outcome at_least(double bound, double value, std::string unit,
                                      std::string text = "") {
  return measured({value, std::move(unit), Measured::Goal::AtLeast, bound}, std::move(text));
}

/// Ends a check as failed.
inline void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error(otherwise);
}

}  // namespace gpu_check
