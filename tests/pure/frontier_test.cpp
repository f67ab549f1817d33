// SPDX-License-Identifier: BSD-3-Clause
#include "support/oracles.hpp"
#include <refrain/planner/frontier.hpp>
#include <refrain/schedule.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using refrain::Executor;
using refrain::planner::Frontier;
using support::Additive;
using support::equal_chain;
using Points = std::vector<Frontier::Point>;

// Frontiers found by enumerating all 394 plans of this chain.
const Additive kUneven = {.boundaries = {20, 15, 19, 18, 17, 5},
                          .saved = {56, 37, 57, 70, 22},
                          .forward = {7, 12, 6, 11, 2},
                          .backward = {17, 30, 9, 22, 4},
                          .forward_more = {2, 1, 3, 2, 0},
                          .backward_more = {6, 2, 4, 3, 10},
                          .tail = {}};

TEST(Frontier, IsTheBestOfAllPlansOfAnUnevenChain) {
  const auto chain = kUneven.chain();
  const Points flat = {{146, 182}, {149, 175}, {161, 168}, {162, 164}, {165, 156}, {170, 152},
                       {177, 145}, {198, 144}, {214, 133}, {253, 127}, {255, 126}, {294, 120}};
  EXPECT_EQ(Frontier(chain, Executor::Flat).points(), flat);
  EXPECT_EQ(Frontier(chain, Executor::Nested).points(), Points({{152, 175},
                                                                {161, 168},
                                                                {162, 164},
                                                                {165, 156},
                                                                {170, 152},
                                                                {177, 145},
                                                                {198, 144},
                                                                {214, 133},
                                                                {253, 127},
                                                                {255, 126},
                                                                {294, 120}}));
}

TEST(Frontier, CountsWhatEarlyStopSaves) {
  auto given = kUneven;
  given.tail = {2, 4, 2, 3, 0};
  EXPECT_EQ(Frontier(given.chain(), Executor::Flat).points(), Points({{146, 171},
                                                                      {149, 166},
                                                                      {152, 164},
                                                                      {161, 157},
                                                                      {162, 156},
                                                                      {165, 147},
                                                                      {177, 141},
                                                                      {181, 139},
                                                                      {196, 137},
                                                                      {214, 129},
                                                                      {253, 125},
                                                                      {255, 124},
                                                                      {294, 120}}));
}

TEST(Frontier, PromisesWhatTheSimulationPlays) {
  for (const auto executor : {Executor::Hooks, Executor::Nested, Executor::Flat}) {
    for (const auto& chain : {kUneven.chain(), equal_chain(12, 3), equal_chain(9, 17)}) {
      const Frontier frontier(chain, executor);
      for (const auto& point : frontier.points()) {
        const auto cost = refrain::simulate(frontier.plan(point.peak), chain, executor);
        EXPECT_LE(cost.peak, point.peak);
        EXPECT_EQ(cost.seconds, point.seconds);
      }
    }
  }
}

TEST(Frontier, EqualStagesNeedFourMoreThanOneKeepsAndNestedOnesALogarithm) {
  for (const std::size_t stages : {2U, 3U, 4U, 8U, 17U, 32U}) {
    const auto chain = equal_chain(stages, 3);
    std::int64_t levels = 0;
    while ((std::size_t{2} << levels) <= stages) ++levels;
    EXPECT_EQ(Frontier(chain, Executor::Flat).points().front().peak, 7);
    EXPECT_EQ(Frontier(chain, Executor::Nested).points().front().peak, 6 + levels);
  }
}

TEST(Frontier, SaysWhatTheLeastPeakIs) {
  const Frontier frontier(kUneven.chain(), Executor::Flat);
  try {
    (void)frontier.plan(145);
    FAIL() << "145 bytes are too few";
  } catch (const refrain::BudgetError& error) {
    EXPECT_STREQ(error.what(), "refrain: no plan fits 145 bytes.\n  the least peak is 146 bytes.");
  }
}

TEST(Frontier, RefusesAChainWhoseTableWouldNotFit) {
  refrain::ChainCost chain;
  chain.stages.resize(5000);
  EXPECT_THROW((void)refrain::planner::Frontier(chain), refrain::OptionError);
}

TEST(Frontier, OfShorterListsIsNeverBetterThanItCanBe) {
  const auto chain = equal_chain(24, 5);
  const Frontier exact(chain);
  const Frontier capped(chain, Executor::Hooks, {.longest_list = 8});
  ASSERT_FALSE(capped.points().empty());
  EXPECT_LE(capped.points().size(), 8U);
  EXPECT_EQ(capped.points().back(), exact.points().back());
  for (const auto& point : capped.points()) {
    const auto played = refrain::simulate(capped.plan(point.peak), chain);
    EXPECT_LE(played.peak, point.peak);
    EXPECT_GE(point.seconds, refrain::simulate(exact.plan(point.peak), chain).seconds);
  }
}

TEST(Frontier, WithinABudgetIsTheLowerPartOfTheWhole) {
  const auto chain = equal_chain(16, 3);
  Points lower;
  for (const auto& point : Frontier(chain).points()) {
    if (point.peak <= 20) lower.push_back(point);
  }
  EXPECT_EQ(Frontier(chain, Executor::Hooks, {.budget = 20}).points(), lower);
}

TEST(Simulation, CountsForwardsAndSaysWhereThePeakLies) {
  const auto chain = kUneven.chain();
  const auto kept = refrain::simulate({5, {{{0, 5}, false}}}, chain, Executor::Flat);
  EXPECT_EQ(kept.forwards, 5);
  EXPECT_EQ(kept.peak, 294);
  EXPECT_EQ(kept.peak_stage, 4);  // its backward: 240 kept before it, 22 + 17 + 10, 5 behind
  const auto replayed = refrain::simulate({5, {{{0, 3}, true}, {{3, 5}, false}}}, chain);
  EXPECT_EQ(replayed.forwards, 8);
}

TEST(Simulation, RefusesAnOptionThatAStageDoesNotHave) {
  try {
    (void)refrain::simulate({5, {{{0, 3}, false, {}, 2}, {{3, 5}, false}}}, kUneven.chain());
    FAIL() << "the stages have no options";
  } catch (const refrain::PlanError& error) {
    EXPECT_STREQ(error.what(),
                 "refrain: stage 0 (``) has no option 2.\n  it has 0; 0 is to run it plainly.");
  }
}

TEST(Simulation, RefusesAScheduleForAnotherChain) {
  EXPECT_THROW((void)refrain::simulate({4, {{{0, 4}, false}}}, kUneven.chain()),
               refrain::PlanError);
}

}  // namespace
