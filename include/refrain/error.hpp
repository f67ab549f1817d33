// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>

namespace refrain {
namespace detail {

/// "refrain: `first`", then each further line that is not empty, indented by two blanks.
template <std::convertible_to<std::string_view>... Line>
[[nodiscard]] std::string message(std::string_view first, const Line&... lines) {
  constexpr std::string_view kWho = "refrain: ";
  std::string text;
  if (!first.starts_with(kWho)) text += kWho;
  text += first;
  [[maybe_unused]] const auto append = [&text](std::string_view line) {
    if (!line.empty()) text.append("\n  ").append(line);
  };
  (append(lines), ...);
  return text;
}

}  // namespace detail

/// What everything the library throws derives from: who, what with numbers, where, why, what to do.
///
///     throw OptionError(fmt::format("every({}): a segment needs at least one stage.", k),
///                       "likely cause: a division that rounded to zero.", "use every(1) or
///                       more.");
///
/// The first argument is the headline, the others become indented lines; an empty one is left out.
class Error : public std::runtime_error {
 public:
  template <std::convertible_to<std::string_view>... Line>
  explicit Error(std::string_view first, const Line&... lines)
      : std::runtime_error(detail::message(first, lines...)) {}
};

/// A replay did not do what the first run did, or what it reads was changed in between.
class DivergenceError : public Error {
  using Error::Error;
};

/// No plan fits the budget.
class BudgetError : public Error {
  using Error::Error;
};

/// A storage tier could not put or take a tensor.
class TierError : public Error {
  using Error::Error;
};

/// A plan or a segmentation does not fit the stages it is meant for.
class PlanError : public Error {
  using Error::Error;
};

/// An argument or an option has a value that means nothing here.
class OptionError : public Error {
  using Error::Error;
};

}  // namespace refrain
