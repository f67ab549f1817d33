// SPDX-License-Identifier: BSD-3-Clause
#include "support/chains.hpp"
#include "support/messages.hpp"
#include <refrain/policy.hpp>

#include <gtest/gtest.h>

namespace {

namespace policy = refrain::policy;
using refrain::OptionError;
using refrain::Tail;
using support::cut_text;
using support::expect_says;

TEST(NonePolicy, ReplaysNothing) {
  EXPECT_EQ(cut_text(policy::none(), 4), "[0,4)");
  EXPECT_EQ(cut_text(policy::none(), 4, Tail::More), "[0,4)");
}

TEST(AllPolicy, MakesEachStageASegment) {
  EXPECT_EQ(cut_text(policy::all(), 3), "[0,1)* [1,2)* [2,3)");
}

TEST(EveryPolicy, CutsSegmentsOfKStagesTheLastMayBeShorter) {
  EXPECT_EQ(cut_text(policy::every(4), 8), "[0,4)* [4,8)");
  EXPECT_EQ(cut_text(policy::every(4), 9), "[0,4)* [4,8)* [8,9)");
}

TEST(EveryPolicy, TakesMoreStagesThanThereAreAsOneSegment) {
  EXPECT_EQ(cut_text(policy::every(INT64_MAX), 3, Tail::More), "[0,3)*");
}

TEST(OneInPolicy, ReplaysStagesZeroKTwoKAlone) {
  EXPECT_EQ(cut_text(policy::one_in(3), 9), "[0,1)* [1,3) [3,4)* [4,6) [6,7)* [7,9)");
}

TEST(FirstPolicy, ReplaysThatManyStagesAlone) {
  EXPECT_EQ(cut_text(policy::first(2), 5), "[0,1)* [1,2)* [2,5)");
}

TEST(FirstPolicy, RefusesMoreStagesThanThereAreNamingBothNumbers) {
  expect_says<OptionError>({"first(6)", "5 stages", "all()"},
                           [] { (void)cut_text(policy::first(6), 5); });
}

TEST(SegmentsPolicy, CutsNineStagesInFiveAsTwoTwoTwoTwoOne) {
  EXPECT_EQ(cut_text(policy::segments(5), 9), "[0,2)* [2,4)* [4,6)* [6,8)* [8,9)");
}

TEST(SegmentsPolicy, RefusesMoreSegmentsThanStagesNamingBothNumbers) {
  expect_says<OptionError>({"4 stages", "5 segments"},
                           [] { (void)cut_text(policy::segments(5), 4); });
}

TEST(SqrtPolicy, CutsAboutRootMSegments) {
  EXPECT_EQ(cut_text(policy::sqrt_n(), 1, Tail::More), "[0,1)*");
  EXPECT_EQ(cut_text(policy::sqrt_n(), 9), "[0,3)* [3,6)* [6,9)");
  EXPECT_EQ(policy::sqrt_n().cut(support::chain_of(32)).size(), 6);
}

TEST(BinaryPolicy, HalvesAndHalvesInside) {
  EXPECT_EQ(cut_text(policy::binary(), 5), "[0,2)*([0,1)* [1,2)) [2,3)* [3,4)* [4,5)");
  EXPECT_EQ(cut_text(policy::binary(), 1), "[0,1)");
}

TEST(CountedPolicies, RefuseZeroAndNegativeNumbersAtOnce) {
  expect_says<OptionError>({"every(0)", "is 0"}, [] { (void)policy::every(0); });
  expect_says<OptionError>({"one_in(-1)", "is -1"}, [] { (void)policy::one_in(-1); });
  expect_says<OptionError>({"first(0)", "none()"}, [] { (void)policy::first(0); });
  expect_says<OptionError>({"segments(-3)", "is -3"}, [] { (void)policy::segments(-3); });
}

}  // namespace
