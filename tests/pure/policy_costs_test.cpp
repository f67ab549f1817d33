// SPDX-License-Identifier: BSD-3-Clause
#include "support/chain_machine.hpp"
#include "support/chains.hpp"
#include <refrain/policy.hpp>

#include <gtest/gtest.h>

#include <cstdint>

namespace {

namespace policy = refrain::policy;
using support::ChainMachine;

ChainMachine run(const policy::AnyPolicy& how, std::int64_t stages, std::int64_t internals) {
  return {how.cut(support::chain_of(stages)), internals};
}

TEST(BinaryPolicy, CostsWhatRecursiveHalvingCosts) {
  struct Known {
    std::int64_t stages, internals, peak, extra_runs;
  };
  for (const Known& known :
       {Known{2, 1, 5, 1}, {3, 1, 6, 2},   {4, 1, 6, 4},    {5, 1, 7, 5},    {8, 1, 7, 12},
        {10, 1, 8, 15},    {32, 1, 9, 80}, {2, 3, 7, 1},    {3, 3, 8, 2},    {4, 3, 8, 4},
        {5, 3, 9, 5},      {8, 3, 9, 12},  {10, 3, 10, 15}, {32, 3, 11, 80}, {2, 8, 12, 1},
        {3, 8, 13, 2},     {4, 8, 13, 4},  {5, 8, 14, 5},   {8, 8, 14, 12},  {10, 8, 15, 15},
        {32, 8, 16, 80}}) {
    const auto machine = run(policy::binary(), known.stages, known.internals);
    EXPECT_EQ(machine.peak(), known.peak) << known.stages << " stages";
    EXPECT_EQ(machine.extra_runs(), known.extra_runs) << known.stages << " stages";
  }
}

TEST(EveryPolicy, PeaksAtItsBoundariesOneSegmentAndTwoGradients) {
  for (const std::int64_t stages : {4, 8, 12, 32, 37}) {
    for (std::int64_t k = 1; k <= stages; ++k) {
      const auto machine = run(policy::every(k), stages, 17);
      EXPECT_EQ(machine.peak(), stages / k + k * 17 + 2) << k << " of " << stages;
    }
  }
}

TEST(EveryPolicy, ReplaysAllButTheLastSegment) {
  EXPECT_EQ(run(policy::every(4), 12, 8).extra_runs(), 8);
  EXPECT_EQ(run(policy::every(5), 12, 8).extra_runs(), 10);
}

TEST(FirstPolicy, PeaksAtItsBoundariesAndAllOtherStages) {
  for (std::int64_t n = 1; n < 12; ++n) {
    const auto machine = run(policy::first(n), 12, 8);
    EXPECT_EQ(machine.peak(), n + (12 - n) * 8 + 3) << n;
    EXPECT_EQ(machine.extra_runs(), n);
  }
}

TEST(OneInPolicy, CostsWhatAsManyFirstStagesCost) {
  const auto spread = run(policy::one_in(3), 12, 8);
  const auto prefix = run(policy::first(4), 12, 8);
  EXPECT_EQ(spread.peak(), prefix.peak());
  EXPECT_EQ(spread.extra_runs(), prefix.extra_runs());
}

}  // namespace
