// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>
#include <refrain/signature.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

namespace refrain {

/// What a chain of layers costs, by measurement: what `profile(layers, inputs...)` gives back and
/// `plan(profile, budget)` plans from. A plain value.
struct Profile {
  ChainCost chain;
  /// The layers that each stage of the chain is made of. More than one where a layer gives back its
  /// input's memory: a cut there is no use.
  std::vector<Segment> layers;
  Bytes resident;  ///< On the device before the step: parameters, optimizer state, data.
  /// A plan stays so far below its budget: for scalars, as the loss itself.
  Bytes slack;
  std::string device = "cpu";
  Executor executor = Executor::Hooks;
  Signature signature;         ///< Of the model.
  bool measured_loss = false;  ///< Or else a gradient of the output's size stands for it.
  /// What the options of the stages keep: the operator policies, described.
  std::vector<std::string> keeps = {};

  [[nodiscard]] std::int64_t layer_count() const { return layers.empty() ? 0 : layers.back().end; }

  friend bool operator==(const Profile&, const Profile&) = default;
};

/// What a plain step of the chain costs, all activations kept; its peak without what is resident.
[[nodiscard]] inline ScheduleCost plain_cost(const Profile& profile) {
  const std::int64_t stages = profile.chain.size();
  if (stages == 0) return simulate({}, profile.chain, profile.executor);
  return simulate({stages, {{{0, stages}, false}}}, profile.chain, profile.executor);
}

namespace detail {

inline constexpr std::int64_t kWorthTelling = 100;  // one part in

/// "0-3", or "3" of one.
[[nodiscard]] inline std::string layers_text(Segment layers) {
  if (layers.size() == 1) return fmt::format("{}", layers.begin);
  return fmt::format("{}-{}", layers.begin, layers.end - 1);
}

[[nodiscard]] inline std::string milliseconds_text(double seconds) {
  constexpr double kPerSecond = 1e3;
  return fmt::format("{:.2f} ms", seconds * kPerSecond);
}

}  // namespace detail

namespace detail {

[[nodiscard]] inline Segment in_layers(const Profile& profile, Segment stages) {
  return {profile.layers[static_cast<std::size_t>(stages.begin)].begin,
          profile.layers[static_cast<std::size_t>(stages.end - 1)].end};
}
[[nodiscard]] inline std::vector<SegmentNode> in_layers(const Profile& profile,
                                                        const std::vector<SegmentNode>& stages) {
  std::vector<SegmentNode> layers;
  layers.reserve(stages.size());
  for (const SegmentNode& node : stages) {
    // Each stage that runs in an option is a region of its own.
    const std::int64_t size = node.option == 0 ? node.range.size() : 1;
    for (std::int64_t i = node.range.begin; i < node.range.end; i += size) {
      layers.push_back({in_layers(profile, Segment{i, i + size}), node.replayed,
                        in_layers(profile, node.inside), node.option, node.tier});
    }
  }
  return layers;
}

}  // namespace detail

/// A cut of the profile's stages as one of its layers. Throws `PlanError` if the profile does not
/// say which layers its stages are.
[[nodiscard]] inline Segmentation in_layers(const Profile& profile, const Segmentation& stages) {
  if (static_cast<std::int64_t>(profile.layers.size()) != profile.chain.size()) {
    throw PlanError(fmt::format("the stages of this profile are {}, but it names the layers of {}.",
                                profile.chain.size(), profile.layers.size()));
  }
  return {profile.layer_count(), detail::in_layers(profile, stages.nodes()), profile.keeps};
}

namespace detail {

/// What an option keeps.
[[nodiscard]] inline std::string option_name(const Profile& profile, std::size_t option) {
  return option < profile.keeps.size() ? profile.keeps[option]
                                       : fmt::format("option {}", option + 1);
}

}  // namespace detail

/// A table: a row a stage, below it one for each of its options, then the whole.
[[nodiscard]] inline std::string to_string(const Profile& profile) {
  constexpr const char* kRow = "{:>8}  {:<24}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}\n";
  std::string text =
      fmt::format(kRow, "layers", "stage", "keeps", "boundary", "forward", "backward", "replay");
  for (std::int64_t i = 0; i < profile.chain.size(); ++i) {
    const StageCost& stage = profile.chain[i];
    text += fmt::format(kRow, detail::layers_text(profile.layers[static_cast<std::size_t>(i)]),
                        stage.name.substr(0, 24), Bytes(stage.plain.saved), Bytes(stage.output),
                        detail::milliseconds_text(stage.plain.forward),
                        detail::milliseconds_text(stage.plain.backward),
                        detail::milliseconds_text(stage.plain.forward - stage.tail));
    for (std::size_t k = 0; k < stage.options.size(); ++k) {
      const GradRun& option = stage.options[k];
      text += fmt::format(kRow, "", detail::option_name(profile, k).substr(0, 24),
                          Bytes(option.saved), "", detail::milliseconds_text(option.forward),
                          detail::milliseconds_text(option.backward), "");
    }
  }
  for (std::int64_t i = 0; i < profile.chain.size(); ++i) {
    const StageCost& stage = profile.chain[i];
    if (stage.plain.saved - stage.saved_tensors <= stage.plain.saved / detail::kWorthTelling)
      continue;
    text += fmt::format("layers {}: {} of what stays is not saved by autograd, a cache perhaps\n",
                        detail::layers_text(profile.layers[static_cast<std::size_t>(i)]),
                        Bytes(stage.plain.saved - stage.saved_tensors));
  }
  const ScheduleCost plain = plain_cost(profile);
  text += fmt::format("resident {} on {}; a plain step peaks at {} above that and takes {}{}",
                      profile.resident, profile.device, Bytes(plain.peak),
                      detail::milliseconds_text(plain.seconds),
                      profile.measured_loss ? "" : " without the loss, which was not given");
  return text;
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::Profile> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::Profile& profile, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(profile), context);
  }
};
