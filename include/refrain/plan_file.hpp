// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/json_file.hpp>
#include <refrain/error.hpp>
#include <refrain/links.hpp>
#include <refrain/plan.hpp>
#include <refrain/profile.hpp>
#include <refrain/segment.hpp>
#include <refrain/signature.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Plans and profiles as JSON. Not in the umbrella header: it needs nlohmann-json.
namespace refrain {

// nlohmann-json finds these by the types' namespace.

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Segment, begin, end)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GradRun, forward, backward, saved, forward_peak, backward_peak,
                                   backward_peak_with_gradient, replay_peak)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StageCost, name, input, output, nograd_forward, nograd_peak,
                                   tail, input_unsaved, input_saved_by_nobody, region_keeps,
                                   gradients, plain, saved_tensors, options)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ChainCost, stages, loss_peak, loss, held)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Signature::Layer, name, type, tensors)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Signature, layers, inputs, device, libtorch)
NLOHMANN_JSON_SERIALIZE_ENUM(Executor, {{Executor::Hooks, "hooks"},
                                        {Executor::Nested, "nested"},
                                        {Executor::Flat, "flat"}})

inline void to_json(nlohmann::json& json, const Profile& profile) {
  json = {{"chain", profile.chain},
          {"layers", profile.layers},
          {"resident", profile.resident},
          {"slack", profile.slack},
          {"device", profile.device},
          {"executor", profile.executor},
          {"measured_loss", profile.measured_loss},
          {"signature", profile.signature}};
  if (!profile.keeps.empty()) json["keeps"] = profile.keeps;
}
inline void from_json(const nlohmann::json& json, Profile& profile) {
  json.at("chain").get_to(profile.chain);
  json.at("layers").get_to(profile.layers);
  json.at("resident").get_to(profile.resident);
  json.at("slack").get_to(profile.slack);
  json.at("device").get_to(profile.device);
  json.at("executor").get_to(profile.executor);
  json.at("measured_loss").get_to(profile.measured_loss);
  json.at("signature").get_to(profile.signature);
  profile.keeps = json.value("keeps", std::vector<std::string>());
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Links, tier, out, back, latency, capacity, in_flight)

inline void to_json(nlohmann::json& json, const SegmentNode& node) {
  json = {{"range", node.range}, {"replayed", node.replayed}};
  if (!node.inside.empty()) json["inside"] = node.inside;
  if (node.option != 0) json["option"] = node.option;
  if (node.tier != 0) json["tier"] = node.tier;
}
inline void from_json(const nlohmann::json& json, SegmentNode& node) {
  node.range = json.at("range").get<Segment>();
  node.replayed = json.at("replayed").get<bool>();
  node.inside = json.value("inside", std::vector<SegmentNode>());
  node.option = json.value("option", std::int64_t{0});
  node.tier = json.value("tier", std::int64_t{0});
}

namespace detail {

/// Throws `PlanError` if a profile from a file cannot have been measured.
inline void check(const Profile& profile) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
  constexpr double kMostSeconds = 1e9;
  const auto bytes = [](std::int64_t value) { return value >= 0 && value <= kMostBytes; };
  const auto seconds = [](double value) { return value > -kMostSeconds && value < kMostSeconds; };
  const ChainCost& chain = profile.chain;
  bool good = static_cast<std::int64_t>(profile.layers.size()) == chain.size() &&
              bytes(chain.loss_peak) && bytes(chain.held) && seconds(chain.loss) &&
              bytes(profile.resident.count()) && bytes(profile.slack.count());
  std::int64_t next = 0;
  for (const Segment& layers : profile.layers) {
    good = good && layers.begin == next && layers.end > next;
    next = layers.end;
  }
  for (std::int64_t i = 0; good && i < chain.size(); ++i) {
    const StageCost& stage = chain[i];
    good = bytes(stage.input) && bytes(stage.output) && bytes(stage.nograd_peak) &&
           bytes(stage.gradients) && bytes(stage.region_keeps) && bytes(stage.input_unsaved) &&
           bytes(stage.input_saved_by_nobody) && seconds(stage.nograd_forward) &&
           seconds(stage.tail) && (i == 0 || chain[i - 1].output == stage.input);
    good = good && (profile.keeps.empty() || stage.options.size() == profile.keeps.size());
    for (std::int64_t way = 0; good && way < stage.ways(); ++way) {
      const GradRun& run = stage.way(way);
      good = bytes(run.saved) && bytes(run.forward_peak) && bytes(run.backward_peak) &&
             bytes(run.backward_peak_with_gradient) && bytes(run.replay_peak) &&
             seconds(run.forward) && seconds(run.backward);
    }
  }
  if (good) return;
  throw PlanError("the numbers of this profile cannot have been measured.",
                  "sizes are from 0 to 2^50 bytes, each stage takes what the one before it gives, "
                  "and the layers follow each other.");
}

/// Throws `PlanError` if links from a file cannot have been measured.
inline void check(const std::vector<Links>& tiers) {
  try {
    for (const Links& links : tiers) refrain::check(links);
  } catch (const OptionError& error) {
    throw PlanError("the links of this plan cannot have been measured.", error.what());
  }
}

}  // namespace detail

/// A profile as text: `refrain-plan solve` reads it.
[[nodiscard]] inline std::string to_file_text(const Profile& profile) {
  const nlohmann::json json = {{"format", detail::kFileFormat}, {"profile", profile}};
  return json.dump(2);
}

/// Throws `PlanError` if the text is anything else.
[[nodiscard]] inline Profile profile_from_text(const std::string& text) {
  return detail::read_file<PlanError>("profile", text, [](const nlohmann::json& json) {
    auto profile = json.at("profile").get<Profile>();
    detail::check(profile);
    return profile;
  });
}

/// A plan, with the profile that it was made from, as text: to keep, or to send to other ranks,
/// which would measure other times and so might plan otherwise.
[[nodiscard]] inline std::string to_file_text(const Plan& plan) {
  nlohmann::json json = {
      {"format", detail::kFileFormat},
      {"budget", plan.budget()},
      {"stages", plan.stages().nodes()},
      {"predicted", {{"peak", plan.predicted_peak()}, {"seconds", plan.predicted_seconds()}}},
      {"signature_hash", fmt::format("{:016x}", hash_of(plan.profile().signature))},
      {"profile", plan.profile()}};
  if (!plan.tiers().empty()) json["tiers"] = plan.tiers();
  return json.dump(2);
}

/// Whatever model it is for. Throws `PlanError` if the text is anything else.
[[nodiscard]] inline Plan plan_from_text(const std::string& text) {
  return detail::read_file<PlanError>("plan", text, [](const nlohmann::json& json) {
    auto profile = json.at("profile").get<Profile>();
    detail::check(profile);
    const auto stages = profile.chain.size();
    auto tiers = json.value("tiers", std::vector<Links>());
    detail::check(tiers);
    return Plan(std::move(profile),
                Segmentation(stages, json.at("stages").get<std::vector<SegmentNode>>()),
                json.at("budget").get<Bytes>(), std::move(tiers));
  });
}

/// For this model alone: throws `PlanError`, with the first difference, if it was made for another.
///
///     auto plan = refrain::plan_from_text(text, refrain::signature(layers, x));
[[nodiscard]] inline Plan plan_from_text(const std::string& text, const Signature& model) {
  Plan plan = plan_from_text(text);
  const std::string difference = first_difference(plan.profile().signature, model);
  if (!difference.empty()) {
    throw PlanError("this plan was made for another model.", difference,
                    "profile this one, and plan again.");
  }
  return plan;
}

/// Writes a plan to a file. Throws `PlanError` if it cannot.
inline void save_plan(const Plan& plan, const std::string& path) {
  detail::write_text<PlanError>(path, to_file_text(plan));
}

/// Reads a plan that `save_plan` wrote for this model: see `plan_from_text`.
///
///     auto plan = refrain::load_plan("plan.json", refrain::signature(layers, x));
[[nodiscard]] inline Plan load_plan(const std::string& path, const Signature& model) {
  return plan_from_text(detail::text_of<PlanError>(path), model);
}

inline void save_profile(const Profile& profile, const std::string& path) {
  detail::write_text<PlanError>(path, to_file_text(profile));
}
[[nodiscard]] inline Profile load_profile(const std::string& path) {
  return profile_from_text(detail::text_of<PlanError>(path));
}

}  // namespace refrain
