// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/checkpoint.hpp>
#include <refrain/detail/measured_step.hpp>
#include <refrain/error.hpp>
#include <refrain/links.hpp>
#include <refrain/measure_links.hpp>
#include <refrain/plan.hpp>
#include <refrain/profile_options.hpp>
#include <refrain/profiler.hpp>
#include <refrain/tier.hpp>

#include <torch/nn/modules/container/sequential.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain {

/// What `fit` gives back: the checkpointed chain, the plan it runs by, and what a step took.
template <class Checkpointed>
class Fitted : public Checkpointed {
 public:
  Fitted(Checkpointed chain, Plan plan, Bytes measured_peak)
      : Checkpointed(std::move(chain)), plan_(std::move(plan)), measured_peak_(measured_peak) {}

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] Bytes measured_peak() const { return measured_peak_; }

 private:
  Plan plan_;
  Bytes measured_peak_;
};

namespace detail {

/// The plan that a step within `budget` was measured of, and that measurement.
struct MeasuredPlan {
  Plan plan;
  Bytes peak;
};

/// An eighth less of each tier that says what it holds: what else takes room there, such as whole
/// pages, is its own. False if none says.
[[nodiscard]] inline bool narrow(std::vector<Links>& tiers) {
  bool any = false;
  for (Links& links : tiers) {
    if (!links.usable() || links.capacity == kNoLimit) continue;
    links.capacity -= links.capacity / 8;
    any = true;
  }
  return any;
}

/// A step by a plan.
struct MeasuredStep {
  Bytes peak;
  std::exception_ptr refused = nullptr;  ///< Or else what a tier said that had no room.
};

/// `measure(plan)` runs a step. A plan that is over is made anew within as much less as it was
/// over, and one that a tier had no room for, with less room.
template <class Measure>
[[nodiscard]] MeasuredPlan measured_plan(const Profile& profile, Bytes budget,
                                         std::vector<Links> tiers, const Measure& measure) {
  constexpr int kAttempts = 4;
  Bytes within = budget;
  Bytes least_measured = kNoLimit;
  std::exception_ptr refused;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0 && within < least_budget(profile, tiers)) break;
    const Plan tried = refrain::plan(profile, within, tiers);
    const MeasuredStep step = measure(tried);
    if (step.refused) {
      refused = step.refused;
      if (!narrow(tiers)) std::rethrow_exception(refused);
      continue;
    }
    const Bytes measured = step.peak;
    if (measured <= budget) return {Plan(profile, tried.stages(), budget, tried.tiers()), measured};
    least_measured = std::min(least_measured, measured);
    within -= measured - budget;
  }
  // Tiers have needs of their own, whole pages for a disk, that count where a budget is very tight.
  if (refused && budget < least_budget(profile)) std::rethrow_exception(refused);
  if (!tiers.empty()) return measured_plan(profile, budget, {}, measure);
  throw BudgetError(
      fmt::format("no plan was measured within {}: the leanest took {}.", budget, least_measured),
      fmt::format("predicted was that {} are enough.", least_budget(profile, tiers)),
      "likely cause: another thread takes memory, or the step is not the one that was profiled.");
}

/// What is on its way counts as the plan has it.
[[nodiscard]] inline std::vector<AnyTier> tiers_for(const Plan& plan, std::vector<AnyTier> tiers) {
  for (std::size_t i = 0; i < std::min(tiers.size(), plan.tiers().size()); ++i)
    tiers[i] = tiers[i].with_on_the_way(plan.tiers()[i].in_flight);
  return tiers;
}

template <class Layers, class... Inputs>
[[nodiscard]] auto fit_chain(const ProfileOptions& options, const Layers& layers, Bytes budget,
                             const Inputs&... inputs) {
  const auto apply = [&](const Plan& plan) {
    auto how = options.checkpoint();
    if (!options.tiers().empty()) how.tiers(tiers_for(plan, options.tiers()));
    if (!options.keeps().empty()) how.keeps(options.keeps());
    return checkpoint(layers, policy::AnyPolicy(plan), std::move(how));
  };
  const Profile profile = refrain::profile(options, layers, inputs...);
  const c10::Device device(profile.device);
  std::vector<Links> tiers;
  for (const AnyTier& tier : options.tiers()) tiers.push_back(measure_links(tier, device));
  const MeasuredPlan fitted = measured_plan(profile, budget, tiers, [&](const Plan& plan) {
    auto chain = apply(plan);
    MeasuredStep step;
    try {
      step.peak = measured_peak(options, generators_of(chain), device, [&] {
        try {
          return HeldValue(chain(inputs...));
        } catch (const TierError&) {
          step.refused = std::current_exception();
          throw;
        }
      });
    } catch (const TierError&) {
      if (!step.refused) throw;  // what a tier cannot give back is another matter
    }
    return step;
  });
  return Fitted<decltype(apply(fitted.plan))>(apply(fitted.plan), fitted.plan, fitted.peak);
}

}  // namespace detail

/// Makes a chain fit: measures it, finds the cheapest plan within `budget`, runs one step by that
/// plan to see that it holds, and gives back the checkpointed chain.
///
///     auto fitted = refrain::fit(layers, 6_GiB, x);
///     fmt::print("{}\n", fitted.plan());
///     loss(fitted(x)).backward();
///
/// `ProfileOptions().tiers({tier::host()})` offers tiers: their links are measured, and what waits
/// for backward may be moved there as well as replayed. `.keeps({policy::keep_matmuls()})` offers
/// to keep part of a layer, and replay the rest.
///
/// The budget is for all that lives on the device: parameters, optimizer state and data too. Say
/// with `ProfileOptions` what the loss is, see there. A step leaves nothing behind: gradients,
/// buffers and random generators come back as they were. Time: `profile`, and two forwards and a
/// backward for each plan that is tried, nearly always one. Throws `BudgetError` if no plan fits,
/// and `TierError` if a tier fails; the chain is as it was then.
template <class... Inputs>
[[nodiscard]] auto fit(const ProfileOptions& options, const torch::nn::Sequential& layers,
                       Bytes budget, const Inputs&... inputs) {
  return detail::fit_chain(options, layers, budget, inputs...);
}

template <class Layer, class... Inputs>
[[nodiscard]] auto fit(const ProfileOptions& options, const std::vector<Layer>& layers,
                       Bytes budget, const Inputs&... inputs) {
  return detail::fit_chain(options, layers, budget, inputs...);
}

template <class Layers, class... Inputs>
  requires(!std::is_same_v<Layers, ProfileOptions>)
[[nodiscard]] auto fit(const Layers& layers, Bytes budget, const Inputs&... inputs) {
  return fit(ProfileOptions(), layers, budget, inputs...);
}

}  // namespace refrain
