// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {

/// `Note`: good to know. `Warning`: something costs and gains nothing. `Error`: results are wrong,
/// or will be.
enum class Severity { Note, Warning, Error };

/// What is looked for.
enum class Rule {
  NoGradient,         ///< A region through which no gradient flows.
  SavesLittle,        ///< A region that forgets less than a hundredth of what its plain call keeps.
  Attention,          ///< A replay that runs a fused attention kernel again.
  OnlyCosts,          ///< A region without which the peak would be the same.
  OutputKeptTwice,    ///< A region's output is held beside a tensor that was made of it.
  RandomNotReplayed,  ///< A region draws numbers that its replay does not draw again.
  BufferChanged,      ///< A buffer changes during the backward pass.
  Diverges,           ///< A replay does something else than its first run.
  StepFails,          ///< The step throws for another reason.
  NotRun,             ///< A region that did not run as one.
  InEvalMode,         ///< A region in eval mode in a model that trains.
  PeakOutside,        ///< The peak is where no region can lower it.
  FarFromBestCut,     ///< Another number of segments would need clearly less.
};

[[nodiscard]] inline std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::Note:
      return "note";
    case Severity::Warning:
      return "warning";
    case Severity::Error:
      return "error";
  }
  return "";
}

/// One thing that `lint` found.
struct Finding {
  Rule rule = Rule::NoGradient;
  Severity severity = Severity::Note;
  std::string region;  ///< Empty where it is about the whole step.
  Bytes bytes;         ///< What it is about.
  std::string what;    ///< A sentence.
  std::string cure;    ///< What to do about it.

  friend bool operator==(const Finding&, const Finding&) = default;
};

/// Whether any finding is a warning or an error: what a program's exit code would say.
[[nodiscard]] inline bool any_warning(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity >= Severity::Warning; });
}

/// "warning: `layers[3,4)`: …", and what to do in a line below.
[[nodiscard]] inline std::string to_string(const Finding& finding) {
  return fmt::format("{}: {}{}\n  {}", to_string(finding.severity),
                     finding.region.empty() ? "" : fmt::format("`{}` ", finding.region),
                     finding.what, finding.cure);
}

/// All of them, the gravest first.
[[nodiscard]] inline std::string to_string(std::vector<Finding> findings) {
  if (findings.empty()) return "lint: nothing to say";
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  std::string text;
  for (const Finding& finding : findings) text += (text.empty() ? "" : "\n") + to_string(finding);
  return text;
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::Finding> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::Finding& finding, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(finding), context);
  }
};
