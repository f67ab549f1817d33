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

TEST(NestedPolicy, CutsTheReplayOfEachSegment) {
  const auto how = policy::nested(policy::every(4), policy::segments(2));
  EXPECT_EQ(cut_text(how, 8, Tail::More), "[0,4)*([0,2)* [2,4)) [4,8)*([4,6)* [6,8))");
  EXPECT_EQ(how.describe(), "nested(every(4), segments(2))");
}

TEST(NestedPolicy, CutsTheLastSegmentTooWhereItIsNotReplayed) {
  EXPECT_EQ(cut_text(policy::nested(policy::every(4), policy::segments(2)), 8),
            "[0,4)*([0,2)* [2,4)) [4,6)* [6,8)");
  EXPECT_EQ(cut_text(policy::nested(policy::every(4), policy::none()), 8), "[0,4)* [4,8)");
}

TEST(NestedPolicy, LeavesAloneWhatIsPlainOrCutAlready) {
  EXPECT_EQ(cut_text(policy::nested(policy::one_in(3), policy::all()), 5, Tail::More),
            cut_text(policy::one_in(3), 5, Tail::More));
  EXPECT_EQ(cut_text(policy::nested(policy::binomial(1), policy::all()), 6),
            cut_text(policy::binomial(1), 6));
}

TEST(NestedPolicy, NestsAgain) {
  const auto inner = policy::nested(policy::every(2), policy::all());
  EXPECT_EQ(cut_text(policy::nested(policy::every(4), inner), 4, Tail::More),
            "[0,4)*([0,2)*([0,1)* [1,2)) [2,3)* [3,4))");
}

TEST(Period, IsKnownOfWhatCutsAlikeAgainAndAgain) {
  EXPECT_EQ(policy::none().period(), 1);
  EXPECT_EQ(policy::all().period(), 1);
  EXPECT_EQ(policy::every(7).period(), 7);
  EXPECT_EQ(policy::one_in(3).period(), 3);
  EXPECT_EQ(policy::nested(policy::every(7), policy::binomial(2)).period(), 7);
  for (const auto& how : {policy::binomial(4), policy::segments(4), policy::sqrt_n(),
                          policy::binary(), policy::first(2)}) {
    EXPECT_FALSE(how.period()) << how.describe();
  }
}

}  // namespace
