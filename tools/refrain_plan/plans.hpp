// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "output.hpp"
#include <refrain/bytes.hpp>
#include <refrain/links.hpp>
#include <refrain/plan.hpp>
#include <refrain/plan_file.hpp>
#include <refrain/planner/frontier.hpp>
#include <refrain/planner/tiered_frontier.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refrain_plan {

using refrain::Bytes;
using refrain::Plan;
using refrain::Profile;

inline Rows::Value bytes(Bytes amount) { return {refrain::to_string(amount), amount.count()}; }
inline Rows::Value seconds(double amount) {
  return {refrain::detail::milliseconds_text(amount), amount};
}
inline Rows::Value percent(double share) {
  constexpr double kPercent = 100;
  const double shown = std::abs(share) < 5e-4 ? 0 : kPercent * share;
  return {fmt::format("{:+.1f} %", shown), kPercent * share};
}

/// A row a stage.
inline Rows stages_of(const Profile& profile) {
  Rows rows({"layers", "stage", "keeps", "boundary", "forward", "backward", "replay"});
  for (std::int64_t i = 0; i < profile.chain.size(); ++i) {
    const auto& stage = profile.chain[i];
    rows.add({refrain::detail::layers_text(profile.layers[static_cast<std::size_t>(i)]), stage.name,
              bytes(Bytes(stage.plain.saved)), bytes(Bytes(stage.output)),
              seconds(stage.plain.forward), seconds(stage.plain.backward),
              seconds(stage.plain.forward - stage.tail)});
  }
  return rows;
}

/// A row a piece of the chain; with tiers, also what it moves.
inline Rows pieces_of(const Plan& plan) {
  const bool tiers = !plan.tiers().empty();
  Rows rows(tiers ? std::vector<std::string>{"layers", "what", "keeps", "moves"}
                  : std::vector<std::string>{"layers", "what", "keeps"});
  for (const auto& piece : refrain::pieces(plan)) {
    std::vector<Rows::Value> row = {refrain::detail::layers_text(piece.layers), piece.what,
                                    bytes(piece.keeps)};
    if (tiers) row.push_back(bytes(piece.moves));
    rows.add(std::move(row));
  }
  return rows;
}

inline nlohmann::json summary(const Plan& plan) {
  nlohmann::json json = {{"budget", plan.budget().count()},
                         {"predicted_peak", plan.predicted_peak().count()},
                         {"predicted_seconds", plan.predicted_seconds()},
                         {"overhead", plan.overhead()},
                         {"layers", to_string(plan.layers())},
                         {"pieces", pieces_of(plan).json()}};
  if (plan.tiers().empty()) return json;
  for (std::size_t i = 0; i < plan.tiers().size(); ++i)
    json["moved"][plan.tiers()[i].tier] = plan.cost().moved[i];
  json["forward_stall"] = plan.cost().forward_stall;
  json["backward_stall"] = plan.cost().backward_stall;
  return json;
}

inline std::string shown(const Plan& plan, Format format) {
  if (format == Format::Json) return summary(plan).dump(2) + '\n';
  if (format == Format::Csv) return pieces_of(plan).csv();
  return fmt::format("{}\n", plan);
}

inline std::string shown(const Profile& profile, Format format) {
  if (format == Format::Table) return fmt::format("{}\n", profile);
  return stages_of(profile).in(format);
}

/// To all tiers.
inline Bytes moved_by(const Plan& plan) {
  return Bytes(
      std::accumulate(plan.cost().moved.begin(), plan.cost().moved.end(), std::int64_t{0}));
}

/// Every plan that no other beats.
inline std::vector<Plan> all_plans(const Profile& profile,
                                   const std::vector<refrain::Links>& tiers) {
  std::vector<Plan> plans;
  const auto add = [&](const refrain::Segmentation& cut, std::int64_t peak,
                       const std::vector<refrain::Links>& links) {
    plans.emplace_back(profile, cut, Bytes(peak), links);
  };
  if (tiers.empty()) {
    const refrain::planner::Frontier frontier(profile.chain, profile.executor);
    for (const auto& point : frontier.points()) add(frontier.plan(point.peak), point.peak, {});
  } else {
    const refrain::planner::TieredFrontier frontier(profile.chain, tiers, profile.executor);
    for (const auto& point : frontier.points()) {
      const auto choice = frontier.plan(point.peak);
      add(choice.cut, point.peak, choice.tiers);
    }
  }
  return plans;
}

inline Rows frontier_of(const Profile& profile, const std::vector<refrain::Links>& tiers = {}) {
  std::vector<std::string> columns = {"peak", "step", "overhead", "replayed"};
  if (!tiers.empty()) columns.emplace_back("moved");
  Rows rows(columns);
  for (const Plan& plan : all_plans(profile, tiers)) {
    std::int64_t replayed = 0;
    for (const auto& node : plan.layers()) replayed += node.replayed ? node.range.size() : 0;
    std::vector<Rows::Value> row = {
        bytes(plan.predicted_peak() + profile.slack),
        seconds(plan.predicted_seconds()),
        percent(plan.overhead()),
        {fmt::format("{} of {}", replayed, plan.layers().stages()), replayed}};
    if (!tiers.empty()) row.push_back(bytes(moved_by(plan)));
    rows.add(std::move(row));
  }
  return rows;
}

/// What two plans do not have in common.
inline Rows difference_of(const Plan& a, const Plan& b) {
  Rows rows({"", "first", "second"});
  rows.add({"budget", bytes(a.budget()), bytes(b.budget())});
  rows.add({"peak", bytes(a.predicted_peak()), bytes(b.predicted_peak())});
  rows.add({"step", seconds(a.predicted_seconds()), seconds(b.predicted_seconds())});
  if (moved_by(a) != moved_by(b)) rows.add({"moves", bytes(moved_by(a)), bytes(moved_by(b))});
  const std::string model = refrain::first_difference(a.profile().signature, b.profile().signature);
  if (!model.empty()) rows.add({"model", "", model});
  if (a.layers() != b.layers()) rows.add({"layers", to_string(a.layers()), to_string(b.layers())});
  return rows;
}

/// What a file holds: a plan, with its profile, or a profile alone.
struct Loaded {
  Profile profile;
  std::optional<Plan> plan;
};

inline Loaded load(const std::string& path) {
  const std::string text = refrain::detail::text_of<refrain::PlanError>(path);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("budget")) {
    Plan plan = refrain::plan_from_text(text);
    return {plan.profile(), plan};
  }
  return {refrain::profile_from_text(text), std::nullopt};
}

}  // namespace refrain_plan
