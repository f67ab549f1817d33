// SPDX-License-Identifier: BSD-3-Clause
#include "support/chain_machine.hpp"
#include "support/chains.hpp"
#include <refrain/policy.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace policy = refrain::policy;
using policy::AnyPolicy;
using policy::LastSegment;
using refrain::Tail;

/// Every ready policy that can serve a chain of `stages`.
std::vector<AnyPolicy> policies(std::int64_t stages) {
  std::vector<AnyPolicy> all{policy::none(), policy::only<void>(), policy::matching("*")};
  for (const auto last : {LastSegment::Plain, LastSegment::Replay}) {
    all.insert(all.end(), {policy::all(last), policy::sqrt_n(last), policy::binary(last)});
    for (const std::int64_t k : {1, 5, 40}) {
      all.push_back(policy::nested(policy::every(k, last), policy::binomial(3)));
      all.push_back(policy::nested(policy::every(k, last), policy::all()));
      all.push_back(policy::nested(policy::one_in(k, last), policy::none()));
    }
    all.push_back(policy::nested(policy::sqrt_n(last), policy::sqrt_n()));
    all.push_back(policy::nested(policy::binary(last), policy::every(2)));
    for (const std::int64_t k : {1, 2, 3, 7, 40, 100}) {
      all.insert(all.end(), {policy::every(k, last), policy::one_in(k, last)});
      if (k > stages && stages > 0) continue;
      all.insert(all.end(), {policy::first(k, last), policy::segments(k, last)});
    }
  }
  return all;
}

class EachPolicy : public testing::TestWithParam<Tail> {
 protected:
  template <class Check>
  static void each(Check&& check) {
    for (std::int64_t stages = 0; stages <= 40; ++stages) {
      for (const AnyPolicy& policy : policies(stages)) {
        SCOPED_TRACE(policy.describe() + " of " + std::to_string(stages));
        check(policy.cut(support::chain_of(stages, GetParam())));
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_P(EachPolicy, CoversTheChainInOrderWithoutGaps) {
  each([](const refrain::Segmentation& cut) {
    std::int64_t next = 0;
    for (const auto& node : cut) {
      ASSERT_EQ(node.range.begin, next);
      ASSERT_GT(node.range.size(), 0);
      next = node.range.end;
    }
    ASSERT_EQ(next, cut.stages());
  });
}

TEST_P(EachPolicy, LeavesNoTwoPlainNeighbours) {
  each([](const refrain::Segmentation& cut) {
    const auto both_plain = [](const auto& a, const auto& b) { return !a.replayed && !b.replayed; };
    const auto& nodes = cut.nodes();
    ASSERT_EQ(std::ranges::adjacent_find(nodes, both_plain), nodes.end());
  });
}

TEST_P(EachPolicy, EndsEachReplayWithAPlainStage) {
  each([](const refrain::Segmentation& cut) {
    for (const auto& node : cut) ASSERT_TRUE(node.inside.empty() || !node.inside.back().replayed);
  });
}

INSTANTIATE_TEST_SUITE_P(Tails, EachPolicy, testing::Values(Tail::Loss, Tail::More));

TEST(LastSegmentRule, SavesTimeAndCostsNoMemory) {
  using Pair = std::pair<AnyPolicy, AnyPolicy>;
  for (std::int64_t stages = 1; stages <= 40; ++stages) {
    for (const auto& [plain, replay] :
         {Pair{policy::every(3), policy::every(3, LastSegment::Replay)},
          Pair{policy::all(), policy::all(LastSegment::Replay)},
          Pair{policy::sqrt_n(), policy::sqrt_n(LastSegment::Replay)},
          Pair{policy::binary(), policy::binary(LastSegment::Replay)}}) {
      const support::ChainMachine one(plain.cut(support::chain_of(stages)), 17);
      const support::ChainMachine other(replay.cut(support::chain_of(stages)), 17);
      EXPECT_EQ(one.peak(), other.peak()) << plain.describe() << " of " << stages;
      EXPECT_LT(one.extra_runs(), other.extra_runs()) << plain.describe() << " of " << stages;
    }
  }
}

}  // namespace
