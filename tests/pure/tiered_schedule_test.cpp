// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/oracles.hpp"
#include "support/programs.hpp"
#include "support/random_chains.hpp"
#include <refrain/tiered_schedule.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace {

using refrain::Bytes;
using refrain::ChainCost;
using refrain::Executor;
using refrain::Links;
using refrain::Segmentation;
using refrain::SegmentNode;
using refrain::simulate;
using refrain::TieredCost;

Links host(double rate, std::int64_t window = 0) {
  return {.out = rate, .back = rate, .in_flight = Bytes(window)};
}

/// Of `chain`, any plan with any of its pieces moved.
Segmentation random_plan(std::mt19937& random, const ChainCost& chain, int tiers = 1) {
  static std::vector<std::vector<Segmentation>> plans(6);
  auto& all = plans[static_cast<std::size_t>(chain.size())];
  if (all.empty()) all = support::Programs(chain).all();
  std::vector<SegmentNode> nodes = all[random() % all.size()].nodes();
  for (SegmentNode& node : nodes) node.tier = std::uniform_int_distribution<>(0, tiers)(random);
  return {chain.size(), nodes};
}

TEST(TieredSimulation, IsThePlainOneWhereNothingMoves) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    const ChainCost chain = support::random_chain(random, 1 + round % 5);
    for (const Segmentation& plan : support::Programs(chain).all()) {
      for (const auto executor : {Executor::Hooks, Executor::Nested, Executor::Flat}) {
        const refrain::ScheduleCost played = simulate(plan, chain, {host(3)}, executor);
        ASSERT_EQ(played, simulate(plan, chain, executor)) << to_string(plan);
      }
    }
  }
}

/// Four equal stages: 1 between them, 10 kept, of which 9 inside; 2 s forward, 4 s backward.
ChainCost four_stages() {
  return support::Additive{{1, 1, 1, 1, 1}, {10, 10, 10, 10}, {2, 2, 2, 2},
                           {4, 4, 4, 4},    {0, 0, 0, 0},     {0, 0, 0, 0}}
      .chain();
}

TEST(TieredSimulation, AFastLinkCostsOnlyTheWaitForWhatIsAskedForFirst) {
  const Segmentation plan(4, {{{0, 3}, false, {}, 0, 1}, {{3, 4}}});
  const TieredCost cost = simulate(plan, four_stages(), {host(10)});
  // Inside of stage 0; inside and input of stages 1 and 2. The last stage has its input from one
  // that is moved, but does not move itself.
  EXPECT_EQ(cost.moved, std::vector<std::int64_t>({9 + 10 + 10}));
  EXPECT_EQ(cost.forward_stall, 0);
  // Stage 2's 10 bytes come after its backward is asked for; the others while backwards run.
  EXPECT_DOUBLE_EQ(cost.backward_stall, 1);
  EXPECT_DOUBLE_EQ(cost.seconds, 24 + 1);
  // Kept is 41 at most. The copies, at half the speed, are over before the next stage is: the peak
  // is in the last stage's forward or backward, with all of its own and stage 2's 10 bytes.
  EXPECT_EQ(simulate(Segmentation(4, {{{0, 4}}}), four_stages()).peak, 43);
  EXPECT_EQ(cost.peak, 24);
}

TEST(TieredSimulation, ASlowLinkMakesTheComputingWaitBothWays) {
  const Segmentation plan(4, {{{0, 3}, false, {}, 0, 1}, {{3, 4}}});
  const TieredCost cost = simulate(plan, four_stages(), {host(2)});
  // Out: 4.5 s from 2 on, 5 s more, 5 s more. The second may go when the first has gone, at 6.5
  // instead of 4; the third at 11.5 instead of 8.5.
  EXPECT_DOUBLE_EQ(cost.forward_stall, 2.5 + 3);
  // The forward is over at 13.5, the third has left at 16.5, the last backward ends at 17.5. Back:
  // 5, 5 and 4.5 s, the second from 17.5 on too, each followed by 4 s of backward.
  EXPECT_DOUBLE_EQ(cost.backward_stall, 5 + 1 + 0.5);
  EXPECT_DOUBLE_EQ(cost.seconds, 24 + 5.5 + 6.5);
}

TEST(TieredSimulation, ARegionMovesItsInputUnlessAStageThatStaysMayHaveSavedIt) {
  const auto moved = [](const std::vector<SegmentNode>& nodes) {
    return simulate({4, nodes}, four_stages(), {host(1)}).moved[0];
  };
  EXPECT_EQ(moved({{{0, 2}, true, {}, 0, 1}, {{2, 4}}}), 0);  // the chain's input is the caller's
  EXPECT_EQ(moved({{{0, 2}, true}, {{2, 3}, true, {}, 0, 1}, {{3, 4}}}), 1);
  EXPECT_EQ(moved({{{0, 2}}, {{2, 3}, true, {}, 0, 1}, {{3, 4}}}), 0);
  EXPECT_EQ(moved({{{0, 2}, false, {}, 0, 1}, {{2, 3}, true, {}, 0, 1}, {{3, 4}}}), 9 + 10 + 1);
}

TEST(TieredSimulation, MoreBandwidthIsNeverWorseAndLatencyNeverBetter) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const ChainCost chain = support::random_chain(random, 5);
    const Segmentation plan = random_plan(random, chain);
    const auto window = static_cast<std::int64_t>(random() % 30);
    TieredCost slower = simulate(plan, chain, {host(0.25, window)});
    for (const double rate : {0.5, 1.0, 2.0, 8.0, 1e6}) {
      const TieredCost faster = simulate(plan, chain, {host(rate, window)});
      ASSERT_LE(faster.seconds, slower.seconds + 1e-9) << to_string(plan) << " at " << rate;
      ASSERT_LE(faster.peak, slower.peak) << to_string(plan) << " at " << rate;
      slower = faster;
    }
    Links late = host(2, window);
    const TieredCost prompt = simulate(plan, chain, {late});
    late.latency = 0.5;
    ASSERT_GE(simulate(plan, chain, {late}).seconds, prompt.seconds);
  }
}

TEST(TieredSimulation, ThePeakHoldsForLinksDownToHalfAsFast) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const ChainCost chain = support::random_chain(random, 5);
    const Segmentation plan = random_plan(random, chain);
    const auto window = static_cast<std::int64_t>(random() % 30);
    const std::int64_t promised = simulate(plan, chain, {host(2, window)}).peak;
    for (const double rate : {1.0, 1.5, 2.0, 5.0}) {
      // What leaves is free as soon as its copy is over.
      refrain::detail::Mover mover(refrain::detail::movables(plan.nodes(), chain),
                                   {host(rate, window)}, 1);
      refrain::detail::ScheduleMachine<refrain::detail::Mover> machine(chain, Executor::Hooks,
                                                                       mover);
      ASSERT_LE(machine.play(plan.nodes()).peak, promised) << to_string(plan) << " at " << rate;
    }
  }
}

TEST(TieredSimulation, WiderWindowsTakeNoMoreTimeForwardAndNoLessMemory) {
  std::mt19937 random(4);
  for (int round = 0; round < 2000; ++round) {
    const ChainCost chain = support::random_chain(random, 5);
    const Segmentation plan = random_plan(random, chain);
    TieredCost narrow = simulate(plan, chain, {host(1)});
    for (const std::int64_t window : {10, 20, 40, 1000}) {
      const TieredCost wide = simulate(plan, chain, {host(1, window)});
      ASSERT_LE(wide.forward_stall, narrow.forward_stall) << to_string(plan);
      ASSERT_LE(wide.seconds, narrow.seconds) << to_string(plan);
      narrow = wide;
    }
  }
}

TEST(TieredSimulation, ScalesWithBytesAndWithTime) {
  std::mt19937 random(5);
  constexpr std::int64_t kTimes = 8;
  for (int round = 0; round < 500; ++round) {
    const ChainCost chain = support::random_chain(random, 5);
    const Segmentation plan = random_plan(random, chain);
    const TieredCost cost = simulate(plan, chain, {host(2, 10)});
    ChainCost large = chain;
    ChainCost slow = chain;
    large.loss_peak *= kTimes;
    slow.loss *= kTimes;
    for (refrain::StageCost& stage : large.stages) {
      for (std::int64_t* bytes :
           {&stage.input, &stage.output, &stage.input_unsaved, &stage.input_saved_by_nobody,
            &stage.nograd_peak, &stage.gradients, &stage.saved_tensors, &stage.plain.saved,
            &stage.plain.forward_peak, &stage.plain.backward_peak,
            &stage.plain.backward_peak_with_gradient, &stage.plain.replay_peak}) {
        *bytes *= kTimes;
      }
    }
    for (refrain::StageCost& stage : slow.stages) {
      for (double* seconds :
           {&stage.nograd_forward, &stage.tail, &stage.plain.forward, &stage.plain.backward}) {
        *seconds *= kTimes;
      }
    }
    const TieredCost larger = simulate(plan, large, {host(2 * kTimes, 10 * kTimes)});
    EXPECT_EQ(larger.peak, kTimes * cost.peak);
    EXPECT_EQ(larger.seconds, cost.seconds);
    EXPECT_EQ(larger.moved[0], kTimes * cost.moved[0]);
    const TieredCost slower = simulate(plan, slow, {host(2.0 / kTimes, 10)});
    EXPECT_EQ(slower.peak, cost.peak);
    EXPECT_EQ(slower.seconds, kTimes * cost.seconds);
  }
}

TEST(TieredSimulation, OtherTiersHaveTheirOwnLinks) {
  const Segmentation one(4, {{{0, 2}, false, {}, 0, 1}, {{2, 4}}});
  const Segmentation two(4, {{{0, 1}, false, {}, 0, 2}, {{1, 2}, false, {}, 0, 1}, {{2, 4}}});
  const std::vector<Links> tiers = {host(1), host(1)};
  EXPECT_LT(simulate(two, four_stages(), tiers).seconds,
            simulate(one, four_stages(), tiers).seconds);
  // The tensor between them, which both may have saved, stays.
  EXPECT_EQ(simulate(one, four_stages(), tiers).moved, std::vector<std::int64_t>({19, 0}));
  EXPECT_EQ(simulate(two, four_stages(), tiers).moved, std::vector<std::int64_t>({9, 9}));
}

TEST(TieredSimulation, WithoutARateAMoveTakesForEver) {
  const Segmentation plan(4, {{{0, 2}, false, {}, 0, 1}, {{2, 4}}});
  EXPECT_EQ(simulate(plan, four_stages(), {Links()}).seconds,
            std::numeric_limits<double>::infinity());
}

TEST(TieredSimulation, RefusesATierWithoutLinksAndLinksThatCannotBe) {
  const Segmentation plan(4, {{{0, 4}, false, {}, 0, 2}});
  support::expect_says<refrain::PlanError>({"[0,4) is moved to tier 2, of 1 tiers", "got: [0,4)@2"},
                                           [&] { (void)simulate(plan, four_stages(), {host(1)}); });
  support::expect_says<refrain::OptionError>(
      {"links to disk: -1 bytes/s out", "none is negative"},
      [] { check(Links{.tier = "disk", .out = -1, .back = 1}); });
  support::expect_says<refrain::PlanError>(
      {"[0,2) is moved to tier 1, but it is inside a replay"},
      [] { Segmentation(4, {{{0, 4}, true, {{{0, 2}, true, {}, 0, 1}, {{2, 4}}}}}); });
  support::expect_says<refrain::PlanError>({"[0,4) has tier -1"},
                                           [] { Segmentation(4, {{{0, 4}, false, {}, 0, -1}}); });
}

TEST(Links, PrintTheirRates) {
  EXPECT_EQ(fmt::format("{}", Links{.out = 12e9, .back = 11e9, .latency = 2e-5}),
            "host: 11.18 GiB/s out, 10.24 GiB/s back, 20 us a copy");
  EXPECT_EQ(fmt::format(
                "{}", Links{.tier = "disk", .out = 1024, .back = 1024, .capacity = Bytes(1 << 20)}),
            "disk: 1.00 KiB/s out, 1.00 KiB/s back, 0 us a copy, at most 1.00 MiB");
}

}  // namespace
