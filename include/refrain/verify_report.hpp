// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refrain {

/// A tensor, or a random generator, that is not the same after a plain and after a checkpointed
/// step.
struct Difference {
  std::string what;  ///< "gradient of fc1.weight"
  std::string how;   ///< "float32[64, 64] on cpu: 12 of 4096 elements differ, by at most 0.031"
};

/// What one side of a comparison took.
struct StepCost {
  std::optional<Bytes> saved;  ///< Left by forward: results and what waits for backward. Empty
                               ///< where nobody measures.
  std::optional<Bytes> peak;   ///< The most that the step held, beyond what was there before.
  std::uint64_t replays = 0;
};

/// What `verify` found.
///
///     auto report = refrain::verify(model, x);
///     if (!report.ok()) fmt::print("{}\n", report);
struct VerifyReport {
  std::size_t outputs = 0;  ///< How many of each were compared.
  std::size_t input_gradients = 0;
  /// Of parameters, and of whatever else a function captured.
  std::size_t parameter_gradients = 0;
  std::size_t buffers = 0;
  std::size_t generators = 0;
  double tolerance = 0.0;
  StepCost plain;
  StepCost checkpointed;
  std::vector<Difference> differences;  ///< In the order in which a step makes them.
  std::string plain_error;              ///< What the plain step threw.
  std::string checkpointed_error;       ///< What the checkpointed step threw.
  bool repeatable = true;               ///< Two plain steps from one state give the same.

  /// Whether the checkpointed step did what the plain step does.
  [[nodiscard]] bool ok() const {
    return differences.empty() && plain_error.empty() && checkpointed_error.empty();
  }
};

namespace detail {

inline std::string share_line(const char* what, const std::optional<Bytes>& plain,
                              const std::optional<Bytes>& quiet) {
  if (!plain || !quiet) return {};
  const double share = plain->count() > 0 ? 100.0 * static_cast<double>(quiet->count()) /
                                                static_cast<double>(plain->count())
                                          : 0;
  return fmt::format("\n  {}: {} plain, {} checkpointed ({:.1f} % of plain)", what, *plain, *quiet,
                     share);
}

}  // namespace detail

[[nodiscard]] inline std::string to_string(const VerifyReport& report) {
  std::string text = "verify: ";
  if (!report.checkpointed_error.empty()) {
    text += fmt::format("FAILED, the checkpointed step threw:\n  {}", report.checkpointed_error);
  } else if (!report.plain_error.empty()) {
    text += fmt::format("FAILED, the plain step threw:\n  {}", report.plain_error);
  } else if (!report.differences.empty()) {
    const Difference& first = report.differences.front();
    text += fmt::format("DIFFERENT in {} of the things compared; first: {}\n  {}",
                        report.differences.size(), first.what, first.how);
  } else if (report.tolerance > 0) {
    text += fmt::format("equal within {}", report.tolerance);
  } else {
    text += "equal, bit for bit";
  }
  if (!report.ok() && !report.repeatable) {
    text +=
        "\n  two plain steps from the same state differ too: the code keeps state or draws numbers "
        "of its own.";
  }
  text += fmt::format(
      "\n  compared: {} outputs, {} input gradients, {} parameter gradients, {} buffers, {} random "
      "generators",
      report.outputs, report.input_gradients, report.parameter_gradients, report.buffers,
      report.generators);
  text += detail::share_line("saved by forward", report.plain.saved, report.checkpointed.saved);
  text += detail::share_line("peak of the step", report.plain.peak, report.checkpointed.peak);
  text += fmt::format("\n  replays: {}", report.checkpointed.replays);
  if (report.checkpointed.replays == 0) {
    text +=
        " (nothing was forgotten: no region was called, none is enabled, or the policy left all "
        "stages plain)";
  }
  return text;
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::VerifyReport> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::VerifyReport& report, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(report), context);
  }
};
