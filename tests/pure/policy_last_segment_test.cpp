// SPDX-License-Identifier: BSD-3-Clause
#include "support/chains.hpp"
#include <refrain/policy.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace {

namespace policy = refrain::policy;
using policy::LastSegment;
using refrain::Tail;
using support::cut_text;

std::vector<policy::AnyPolicy> policies(LastSegment last) {
  return {policy::all(last),      policy::every(2, last), policy::one_in(1, last),
          policy::first(6, last), policy::sqrt_n(last),   policy::segments(2, last),
          policy::binary(last)};
}

TEST(LastSegment, IsPlainBeforeTheLoss) {
  for (const auto& each : policies(LastSegment::Plain)) {
    EXPECT_FALSE(each.cut(support::chain_of(6)).nodes().back().replayed) << each.describe();
  }
}

TEST(LastSegment, IsReplayedWhereMoreFollows) {
  for (const auto& each : policies(LastSegment::Plain)) {
    EXPECT_TRUE(each.cut(support::chain_of(6, Tail::More)).nodes().back().replayed)
        << each.describe();
  }
}

TEST(LastSegment, IsReplayedWhereTheUserAsks) {
  for (const auto& each : policies(LastSegment::Replay)) {
    EXPECT_TRUE(each.cut(support::chain_of(6)).nodes().back().replayed) << each.describe();
  }
}

TEST(LastSegment, TakesItsPlainNeighboursIn) {
  EXPECT_EQ(cut_text(policy::one_in(2), 3), "[0,1)* [1,3)");
  EXPECT_EQ(cut_text(policy::one_in(2, LastSegment::Replay), 3), "[0,1)* [1,2) [2,3)*");
}

TEST(LastSegment, LeavesTheWholeChainPlainWhenItIsTheOnlyOne) {
  EXPECT_EQ(cut_text(policy::every(6), 6), "[0,6)");
  EXPECT_EQ(cut_text(policy::segments(1), 6), "[0,6)");
  EXPECT_EQ(cut_text(policy::segments(1, LastSegment::Replay), 6), "[0,6)*");
}

}  // namespace
