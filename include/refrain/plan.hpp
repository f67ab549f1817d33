// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/mover.hpp>
#include <refrain/error.hpp>
#include <refrain/links.hpp>
#include <refrain/planner/frontier.hpp>
#include <refrain/planner/tiered_frontier.hpp>
#include <refrain/policy/any_policy.hpp>
#include <refrain/profile.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>
#include <refrain/tiered_schedule.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace refrain {

/// Which layers of a chain are replayed so that a step stays within a budget, and what that step
/// will cost. A segment policy: `checkpoint(layers, plan)` applies it.
///
///     auto plan = refrain::plan(profile, 6_GiB);
///     fmt::print("{}\n", plan);
///     auto fitted = refrain::checkpoint(layers, plan);
///
/// With tiers, it also says what is moved where between forward and backward: its nodes' `tier`.
class Plan {
 public:
  /// `stages` cuts the profile's stages. Throws `PlanError` if it is for another number of them, or
  /// moves memory to more tiers.
  Plan(Profile profile, Segmentation stages, Bytes budget, std::vector<Links> tiers = {})
      : profile_(std::move(profile)),
        stages_(std::move(stages)),
        budget_(budget),
        tiers_(std::move(tiers)),
        cost_(simulate(stages_, profile_.chain, tiers_, profile_.executor)),
        layers_(in_layers(profile_, stages_)) {}

  /// The plan in layers. Throws `PlanError` if the chain has another number of them.
  [[nodiscard]] Segmentation cut(const Chain& chain) const {
    if (chain.size() != layers_.stages()) {
      throw PlanError(fmt::format("a plan for {} layers does not fit a chain of {}.",
                                  layers_.stages(), chain.size()),
                      "profile this chain, and plan again.");
    }
    return layers_;
  }
  [[nodiscard]] std::string describe() const { return fmt::format("plan({})", budget_); }

  [[nodiscard]] Bytes budget() const { return budget_; }
  /// Of a step, with all that is resident.
  [[nodiscard]] Bytes predicted_peak() const { return profile_.resident + Bytes(cost_.peak); }
  /// Of a step: forward, loss and backward, in seconds.
  [[nodiscard]] double predicted_seconds() const { return cost_.seconds; }
  /// What the plan costs beyond a plain step, as a share of it.
  [[nodiscard]] double overhead() const {
    const double plain = plain_cost(profile_).seconds;
    return plain > 0 ? cost_.seconds / plain - 1 : 0;
  }
  [[nodiscard]] const Segmentation& layers() const { return layers_; }
  [[nodiscard]] const Segmentation& stages() const { return stages_; }
  /// With tiers: which there are, and with which windows memory must be moved for the peak to hold.
  [[nodiscard]] const std::vector<Links>& tiers() const { return tiers_; }
  [[nodiscard]] const TieredCost& cost() const { return cost_; }
  [[nodiscard]] const Profile& profile() const { return profile_; }

  friend bool operator==(const Plan& a, const Plan& b) {
    return a.profile_ == b.profile_ && a.stages_ == b.stages_ && a.budget_ == b.budget_ &&
           a.tiers_ == b.tiers_;
  }

 private:
  Profile profile_;
  Segmentation stages_;
  Bytes budget_;
  std::vector<Links> tiers_;
  TieredCost cost_;
  Segmentation layers_;
};

static_assert(policy::SegmentPolicy<Plan>, "Plan must model SegmentPolicy");

namespace detail {

/// Where the peak of a step lies.
[[nodiscard]] inline std::string peak_owner(const Profile& profile, const ScheduleCost& cost) {
  if (cost.peak_stage >= profile.chain.size()) return "the loss";
  const Segment layers = profile.layers[static_cast<std::size_t>(cost.peak_stage)];
  return fmt::format("layer{} {} (`{}`)", layers.size() == 1 ? "" : "s", layers_text(layers),
                     profile.chain[cost.peak_stage].name);
}

/// The plan of least peak, copies of buffers counted.
[[nodiscard]] inline ScheduleCost leanest(const Profile& profile, const planner::Frontier& all) {
  ScheduleCost least;
  for (const planner::Frontier::Point& point : all.points()) {
    if (least.peak != 0 && point.peak >= least.peak) break;
    const ScheduleCost cost = simulate(all.plan(point.peak), profile.chain, profile.executor);
    if (least.peak == 0 || cost.peak < least.peak) least = cost;
  }
  return least;
}

[[noreturn]] inline void fail_budget(const Profile& profile, Bytes budget,
                                     const ScheduleCost& cost) {
  const bool in_loss = cost.peak_stage >= profile.chain.size();
  throw BudgetError(
      fmt::format("no plan fits {}: the least reachable peak is {}.", budget,
                  profile.resident + profile.slack + Bytes(cost.peak)),
      fmt::format("{} of it are resident before the step; {} sets the rest, {}.", profile.resident,
                  peak_owner(profile, cost), Bytes(cost.peak)),
      in_loss ? "what would help: a smaller batch, or the loss in pieces; no plan lowers the loss."
              : "what would help: a smaller batch, or that layer as several layers of the chain.");
}

/// Lists of unequal stages grow with the chain: from here on only so many steps of each are kept.
inline constexpr std::int64_t kExactStages = 128;
inline constexpr std::size_t kLongestList = 512;

[[nodiscard]] inline planner::Frontier::Limits limits_for(const Profile& profile) {
  planner::Frontier::Limits limits;
  if (profile.chain.size() > kExactStages) limits.longest_list = kLongestList;
  return limits;
}

}  // namespace detail

/// The least budget that any plan fits.
[[nodiscard]] inline Bytes least_budget(const Profile& profile) {
  const planner::Frontier all(profile.chain, profile.executor, detail::limits_for(profile));
  return profile.resident + profile.slack + Bytes(detail::leanest(profile, all).peak);
}

/// The cheapest plan whose step stays within `budget`, all that is resident included.
///
/// Time: 48 unlike layers about 0.1 s, 96 about half a second. Throws `BudgetError` with the least
/// reachable peak and the layer that sets it if no plan fits.
[[nodiscard]] inline Plan plan(const Profile& profile, Bytes budget) {
  planner::Frontier::Limits limits = detail::limits_for(profile);
  const Bytes left = budget - profile.resident - profile.slack;
  limits.budget = left.count();
  const planner::Frontier frontier(profile.chain, profile.executor, limits);
  // The solver does not count copies of buffers, so the cheapest that fits may be a later one.
  const auto points = frontier.points();
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    const Segmentation cut = frontier.plan(point->peak);
    if (simulate(cut, profile.chain, profile.executor).peak <= left.count())
      return {profile, cut, budget};
  }
  limits.budget = std::numeric_limits<std::int64_t>::max();
  const planner::Frontier all(profile.chain, profile.executor, limits);
  detail::fail_budget(profile, budget, detail::leanest(profile, all));
}

namespace detail {

[[nodiscard]] inline planner::TieredFrontier tiered(const Profile& profile,
                                                    const std::vector<Links>& tiers) {
  return {profile.chain, tiers, profile.executor, limits_for(profile)};
}
[[nodiscard]] inline TieredCost leanest(const Profile& profile,
                                        const planner::TieredFrontier& all) {
  const auto choice = all.plan(all.points().front().peak);
  return simulate(choice.cut, profile.chain, choice.tiers, profile.executor);
}

}  // namespace detail

/// The least budget that any plan fits that was found with these tiers.
[[nodiscard]] inline Bytes least_budget(const Profile& profile, const std::vector<Links>& tiers) {
  const Bytes least(detail::leanest(profile, detail::tiered(profile, tiers)).peak);
  return profile.resident + profile.slack + least;
}

/// The same where memory may also be moved: each piece is kept, replayed, or moved to a tier and
/// back.
///
///     const Links host{.tier = "host", .out = 12e9, .back = 12e9};
///     auto plan = refrain::plan(profile, 6_GiB, {host});
///
/// The first tier that has room is used first. Never worse than without tiers, nor for a larger
/// budget; otherwise the best of what a search looks at, see `planner::TieredFrontier`. Time: 32
/// equal layers about 0.1 s, 96 less than a second. Throws as `plan(profile, budget)` does, and
/// `OptionError` if links cannot be.
[[nodiscard]] inline Plan plan(const Profile& profile, Bytes budget,
                               const std::vector<Links>& tiers) {
  const planner::TieredFrontier all = detail::tiered(profile, tiers);
  const std::int64_t left = (budget - profile.resident - profile.slack).count();
  if (all.points().front().peak > left)
    detail::fail_budget(profile, budget, detail::leanest(profile, all));
  planner::TieredFrontier::Choice choice = all.plan(left);
  return {profile, std::move(choice.cut), budget, std::move(choice.tiers)};
}

/// One piece of the chain, as a plan treats it.
struct PlanPiece {
  Segment layers;
  /// "kept", "replayed", "replayed as [0,2)* [2,4)", "replayed but for keep_matmuls()", "kept on
  /// host"
  std::string what;
  Bytes keeps;  ///< From forward to backward, its result included.
  Bytes moves;  ///< To its tier. What it reads of a result counts here, with its reader.
};

[[nodiscard]] inline std::vector<PlanPiece> pieces(const Plan& plan) {
  const ChainCost& chain = plan.profile().chain;
  const auto movable = detail::movables(plan.stages().nodes(), chain);
  std::vector<PlanPiece> pieces;
  for (const SegmentNode& stages : plan.stages()) {
    std::int64_t keeps = stages.replayed ? chain.boundary(stages.range.end) : 0;
    std::int64_t moves = 0;
    for (std::int64_t k = stages.range.begin; k < stages.range.end; ++k) {
      if (!stages.replayed) keeps += chain[k].way(stages.option).saved;
      moves += movable[static_cast<std::size_t>(k)].bytes;
    }
    std::string what = stages.replayed ? "replayed" : "kept";
    if (stages.option != 0) {
      const auto option = static_cast<std::size_t>(stages.option - 1);
      what = "replayed but for " + detail::option_name(plan.profile(), option);
    }
    if (!stages.inside.empty())
      what += " as " + to_string(detail::in_layers(plan.profile(), stages.inside));
    if (stages.tier != 0) {
      what += stages.replayed ? ", its input on " : " on ";
      what += plan.tiers()[static_cast<std::size_t>(stages.tier - 1)].tier;
    }
    pieces.push_back({detail::in_layers(plan.profile(), stages.range), std::move(what),
                      Bytes(keeps), Bytes(moves)});
  }
  return pieces;
}

namespace detail {

/// What a plan moves, and how long the step waits for that. Nothing without tiers.
[[nodiscard]] inline std::string moves_text(const Plan& plan) {
  std::string text;
  for (std::size_t i = 0; i < plan.tiers().size(); ++i) {
    text += fmt::format("{} {} to {}", i == 0 ? "\nmoves" : ",", Bytes(plan.cost().moved[i]),
                        plan.tiers()[i].tier);
  }
  if (text.empty()) return text;
  return text + fmt::format(" and back; waits {} for memory to leave, {} for it to come back",
                            milliseconds_text(plan.cost().forward_stall),
                            milliseconds_text(plan.cost().backward_stall));
}

}  // namespace detail

/// A table: a row for each piece of the chain, then what the step will cost.
[[nodiscard]] inline std::string to_string(const Plan& plan) {
  constexpr double kPercent = 100;
  const Profile& profile = plan.profile();
  const auto row = [&plan](const auto& layers, const auto& what, const auto& keeps,
                           const auto& moves) {
    std::string text = fmt::format("{:>10}  {:<34}  {:>11}", layers, what, keeps);
    if (!plan.tiers().empty()) text += fmt::format("  {:>11}", moves);
    return text + '\n';
  };
  std::string text = row("layers", "", "keeps", "moves");
  for (const PlanPiece& piece : pieces(plan))
    text += row(detail::layers_text(piece.layers), piece.what, piece.keeps, piece.moves);
  const ScheduleCost plain = plain_cost(profile);
  return text +
         fmt::format("peak {} of {}, set by {}; plain {}\nstep {}, {:+.1f} % on the plain {}",
                     plan.predicted_peak(), plan.budget(), detail::peak_owner(profile, plan.cost()),
                     profile.resident + Bytes(plain.peak),
                     detail::milliseconds_text(plan.cost().seconds), plan.overhead() * kPercent,
                     detail::milliseconds_text(plain.seconds)) +
         detail::moves_text(plan);
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::Plan> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::Plan& plan, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(plan), context);
  }
};
