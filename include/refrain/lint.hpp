// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/lint_step.hpp>
#include <refrain/detail/short_what.hpp>
#include <refrain/detail/step_recorder.hpp>
#include <refrain/enable.hpp>
#include <refrain/error.hpp>
#include <refrain/finding.hpp>
#include <refrain/ledger.hpp>
#include <refrain/ledger_lint.hpp>
#include <refrain/record.hpp>

#include <torch/nn/module.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain {
namespace detail {

/// Calls the regions of a model by their places in it while it lives.
class NamedByPlace {
 public:
  explicit NamedByPlace(std::vector<PlacedRegion> regions) : regions_(std::move(regions)) {
    for (const auto& [path, region] : regions_) {
      before_.push_back(region->region_name());
      region->set_path(path);
    }
  }
  NamedByPlace(const NamedByPlace&) = delete;
  NamedByPlace& operator=(const NamedByPlace&) = delete;
  ~NamedByPlace() {
    for (std::size_t i = 0; i < regions_.size(); ++i) regions_[i].region->set_path(before_[i]);
  }

  [[nodiscard]] const std::vector<PlacedRegion>& regions() const { return regions_; }

 private:
  std::vector<PlacedRegion> regions_;
  std::vector<std::string> before_;
};

/// With their places; the model itself, where it is one, keeps its name.
template <class Thing>
[[nodiscard]] std::vector<PlacedRegion> regions_of(Thing& thing) {
  if constexpr (Holder<Thing> || Module<Thing>) {
    torch::nn::Module& model = module_of(thing);
    std::vector<PlacedRegion> regions = find_regions(model);
    for (auto& [path, region] : regions) {
      if (dynamic_cast<torch::nn::Module*>(region) == &model) path = region->region_name();
    }
    return regions;
  } else {
    return {};
  }
}

/// What a step threw, as a finding. Of Refrain's own errors the region is the name between the
/// first two backquotes, if there are any, and the last line says what to do.
[[nodiscard]] inline Finding finding_of(const std::exception& error) {
  const std::string message = short_what(error);
  Finding finding{
      Rule::StepFails,
      Severity::Error,
      {},
      Bytes(0),
      "the step fails: " + message,
      "does it work without lint? lint calls the model three times, with gradients of ones."};
  if (dynamic_cast<const Error*>(&error) == nullptr) return finding;
  const std::size_t begin = message.find('`');
  const std::size_t end = begin == std::string::npos ? begin : message.find('`', begin + 1);
  if (end != std::string::npos) finding.region = message.substr(begin + 1, end - begin - 1);
  if (dynamic_cast<const DivergenceError*>(&error) != nullptr) finding.rule = Rule::Diverges;
  if (message.find("draws from a generator") != std::string::npos)
    finding.rule = Rule::RandomNotReplayed;
  const std::size_t last = message.rfind("\n  ");
  finding.what = "makes the step fail: " + message.substr(0, last);
  finding.cure =
      last == std::string::npos ? "see docs/reading_a_divergence.md" : message.substr(last + 3);
  return finding;
}

/// What the model itself shows: regions that did not run, or in another mode.
inline void look_at_regions(const std::vector<PlacedRegion>& regions, const Ledger& ledger,
                            bool model_trains, std::vector<Finding>& findings) {
  for (const auto& [path, region] : regions) {
    const std::string& name = region->region_name();
    // The regions of a chain are called "name[0,4)".
    const bool ran =
        std::any_of(ledger.calls.begin(), ledger.calls.end(), [&](const RegionCall& call) {
          return call.region == name || call.region.starts_with(name + "[");
        });
    // What is offloaded replays nothing, and moves what it saves.
    const bool moved =
        std::any_of(ledger.moved.begin(), ledger.moved.end(), [&](const MovedMemory& memory) {
          return memory.region == name || memory.region.starts_with(name + "[");
        });
    if (!region->enabled()) {
      findings.push_back({Rule::NotRun, Severity::Note, name, Bytes(0),
                          "is switched off, and ran plainly.", "refrain::enable(model)."});
    } else if (!ran && !moved) {
      findings.push_back({Rule::NotRun, Severity::Warning, name, Bytes(0),
                          "did not run as a region in this step.",
                          "likely cause: it is not called, or without grad mode."});
    }
    const auto* const module = dynamic_cast<const torch::nn::Module*>(region);
    if (ran && model_trains && module != nullptr && !module->is_training()) {
      findings.push_back({Rule::InEvalMode, Severity::Note, name, Bytes(0),
                          "is in eval mode in a model that trains.",
                          "train() it, unless it is meant to be frozen; a frozen part at the front "
                          "of a model needs no region."});
    }
  }
}

}  // namespace detail

/// Runs a step of a model and reports regions that gain nothing, that are wrong, or that could gain
/// more, each with its cure.
///
///     for (const auto& finding : refrain::lint(model, x)) fmt::print("{}\n", finding);
///
/// `thing` is anything that can be called: a checkpointed block, function or chain, or a whole
/// model with regions inside, which findings call by their places in it. It is called three times:
/// to see what it writes; in a step with values checked (see `Check::Values`); and in a step that
/// is recorded (see `record`; timelines need what that says). A step is forward and backward, with
/// gradients of ones of all results. Gradients, buffers, LibTorch's random generators and those
/// that regions name come back as they were, and the graph of the inputs is left alone; what the
/// code keeps elsewhere does not come back, and hooks of yours run. What a step throws is a
/// finding; what the first call throws leaves as it is. Time: that of a forward and of two steps.
/// Memory: a copy of each buffer, and what checking values takes.
template <class Thing, class... Inputs>
  requires(!std::is_same_v<std::remove_cvref_t<Thing>, Ledger>)
[[nodiscard]] std::vector<Finding> lint(Thing&& thing, const Inputs&... inputs) {
  using Values = detail::StepRecorder::Values;
  using Plain = std::remove_reference_t<Thing>;
  const detail::NamedByPlace named(detail::regions_of<Plain>(thing));
  detail::LintStep<Plain, Inputs...> step(thing, detail::generators_of(thing), inputs...);
  std::vector<Finding> findings;
  const auto run = [&](Values values) -> std::optional<Ledger> {
    try {
      return detail::recorded(values, [&] { step.run(); });
    } catch (const std::exception& error) {
      if (findings.empty()) findings.push_back(detail::finding_of(error));
      return std::nullopt;
    }
  };
  (void)run(Values::Checked);
  const auto ledger = run(Values::AsAsked);
  for (const auto& [name, how] : step.changed()) {
    findings.push_back(
        {Rule::BufferChanged,
         Severity::Error,
         {},
         Bytes(0),
         fmt::format("buffer `{}` changes during the backward pass ({}).", name, how),
         "likely cause: a region writes it through a raw pointer; name it in "
         "CheckpointOptions().state({buffer})."});
  }
  if (!ledger) return findings;
  std::vector<Finding> seen = lint(*ledger);
  findings.insert(findings.end(), std::make_move_iterator(seen.begin()),
                  std::make_move_iterator(seen.end()));
  bool trains = false;
  if constexpr (detail::Holder<Plain>) trains = thing->is_training();
  if constexpr (detail::Module<Plain>) trains = thing.is_training();
  detail::look_at_regions(named.regions(), *ledger, trains, findings);
  if (ledger->calls.empty() && ledger->moved.empty() && named.regions().empty()) {
    findings.push_back({Rule::NotRun,
                        Severity::Note,
                        {},
                        Bytes(0),
                        "no region ran in this step.",
                        "refrain::checkpoint(block), or enable(model)."});
  }
  return findings;
}

}  // namespace refrain
