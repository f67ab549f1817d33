// SPDX-License-Identifier: BSD-3-Clause
//
// What every planner keeps to, on chains of any depth, within any budget.
#include "support/chains.hpp"
#include "support/oracles.hpp"
#include "support/plan_interpreter.hpp"
#include <refrain/planner/binomial.hpp>
#include <refrain/planner/frontier.hpp>
#include <refrain/policy.hpp>
#include <refrain/schedule.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace {

using refrain::ChainCost;
using refrain::Executor;
using refrain::Segmentation;
using refrain::planner::Frontier;

/// A plan, and what its planner promises of it.
struct Promised {
  Segmentation plan;
  std::optional<std::int64_t> peak = {};
  std::optional<double> seconds = {};
  std::optional<std::int64_t> forwards = {};
};

/// Plans within shares of the way from the least possible peak to the plain one.
struct Planner {
  std::string name;
  Executor executor;
  std::function<Promised(const ChainCost&, std::int64_t budget)> plan;
};

Planner exact(std::string name, Executor executor, Frontier::Limits limits = {}) {
  return {std::move(name), executor,
          [executor, limits](const ChainCost& chain, std::int64_t budget) {
            const Frontier frontier(chain, executor, limits);
            Promised promised{frontier.plan(budget)};
            for (const auto& point : frontier.points()) {
              if (point.peak > budget) break;
              promised.peak = point.peak;
              promised.seconds = point.seconds;
            }
            return promised;
          }};
}

Planner fixed(std::string name, const refrain::policy::AnyPolicy& policy) {
  return {std::move(name), Executor::Hooks, [policy](const ChainCost& chain, std::int64_t) {
            return Promised{policy.cut(support::chain_of(chain.size()))};
          }};
}

Planner binomial(std::int64_t slots) {
  return {"Binomial" + std::to_string(slots), Executor::Flat,
          [slots](const ChainCost& chain, std::int64_t) {
            const auto n = chain.size();
            Promised promised{{n, refrain::planner::binomial_nodes({0, n}, slots)}};
            promised.forwards = n + refrain::planner::binomial_extra_forwards(n, slots);
            return promised;
          }};
}

const std::vector<Planner>& planners() {
  namespace policy = refrain::policy;
  static const std::vector<Planner> all = {
      exact("Hooks", Executor::Hooks),
      exact("Nested", Executor::Nested),
      exact("Flat", Executor::Flat),
      exact("Capped", Executor::Hooks, {.longest_list = 6}),
      binomial(1),
      binomial(3),
      fixed("SqrtN", policy::sqrt_n()),
      fixed("EveryThree", policy::every(3)),
      fixed("OneInTwo", policy::one_in(2)),
      fixed("Binary", policy::binary()),
      fixed("AllReplayed", policy::all(policy::LastSegment::Replay))};
  return all;
}

class PlannerContract
    : public testing::TestWithParam<std::tuple<std::size_t, std::size_t, double>> {
 protected:
  static const Planner& planner() { return planners()[std::get<0>(GetParam())]; }
  static std::size_t depth() { return std::get<1>(GetParam()); }

  /// Unlike stages, from a few primes.
  static ChainCost chain() {
    support::Additive chain;
    chain.boundaries = {3};
    for (std::size_t i = 0; i < depth(); ++i) {
      const auto n = static_cast<std::int64_t>(i);
      chain.boundaries.push_back(2 + n * 7 % 5);
      chain.saved.push_back(chain.boundaries.back() + n * 11 % 13);
      chain.forward.push_back(1 + n * 5 % 7);
      chain.backward.push_back(2 + n * 3 % 8);
      chain.forward_more.push_back(n % 3);
      chain.backward_more.push_back(n % 4);
      chain.tail.push_back(n % 2 == 0 ? 0.5 : 0.0);
    }
    return chain.chain();
  }
  static std::int64_t budget(const ChainCost& chain) {
    const auto points = Frontier(chain, planner().executor).points();
    const auto least = static_cast<double>(points.front().peak);
    const auto most = static_cast<double>(points.back().peak);
    return static_cast<std::int64_t>(least + std::get<2>(GetParam()) * (most - least));
  }
};

TEST_P(PlannerContract, NothingIsUsedBeforeItExistsAndNoStageRunsBackwardTwice) {
  const ChainCost chain = this->chain();
  const Promised promised = planner().plan(chain, budget(chain));
  EXPECT_NO_THROW(support::PlanInterpreter{promised.plan}) << to_string(promised.plan);
}

TEST_P(PlannerContract, WhatIsPromisedIsWhatIsPlayed) {
  const ChainCost chain = this->chain();
  const Promised promised = planner().plan(chain, budget(chain));
  const auto played = refrain::simulate(promised.plan, chain, planner().executor);
  if (promised.peak) {
    EXPECT_EQ(played.peak, *promised.peak);
    EXPECT_LE(played.peak, budget(chain));
  }
  EXPECT_EQ(played.seconds, promised.seconds.value_or(played.seconds));
  EXPECT_EQ(played.forwards, promised.forwards.value_or(played.forwards));
  const auto plain =
      refrain::simulate({chain.size(), {{{0, chain.size()}, false}}}, chain, planner().executor);
  EXPECT_GE(played.seconds, plain.seconds);
  EXPECT_GE(played.forwards, chain.size());
}

TEST_P(PlannerContract, NoFixedPlanBeatsTheExactOne) {
  const ChainCost chain = this->chain();
  const auto played =
      refrain::simulate(planner().plan(chain, budget(chain)).plan, chain, planner().executor);
  const Frontier exact(chain, planner().executor);
  EXPECT_LE(refrain::simulate(exact.plan(played.peak), chain, planner().executor).seconds,
            played.seconds);
}

std::string contract_name(
    const testing::TestParamInfo<std::tuple<std::size_t, std::size_t, double>>& parameter) {
  return planners()[std::get<0>(parameter.param)].name + "Of" +
         std::to_string(std::get<1>(parameter.param)) + "Share" +
         std::to_string(static_cast<int>(100 * std::get<2>(parameter.param)));
}

INSTANTIATE_TEST_SUITE_P(Planners, PlannerContract,
                         testing::Combine(testing::Range(std::size_t{0}, planners().size()),
                                          testing::Values(1, 2, 3, 5, 13),
                                          testing::Values(0.0, 0.3, 1.0)),
                         contract_name);

}  // namespace
