// SPDX-License-Identifier: BSD-3-Clause
#include "support/chains.hpp"
#include "support/messages.hpp"
#include <refrain/segment.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

using refrain::even_segments;
using refrain::OptionError;
using refrain::PlanError;
using refrain::Segment;
using refrain::Segmentation;
using refrain::SegmentNode;
using support::expect_says;

TEST(EvenSegments, CutNineStagesInFiveAsTwoTwoTwoTwoOne) {
  const std::vector<Segment> expected{{0, 2}, {2, 4}, {4, 6}, {6, 8}, {8, 9}};
  EXPECT_EQ(even_segments(9, 5), expected);
}

TEST(EvenSegments, DifferByAtMostOneLargerFirst) {
  for (std::int64_t stages = 1; stages <= 40; ++stages) {
    for (std::int64_t count = 1; count <= stages; ++count) {
      const auto segments = even_segments(stages, count);
      EXPECT_EQ(std::ssize(segments), count);
      EXPECT_LE(segments.front().size() - segments.back().size(), 1);
      EXPECT_TRUE(std::ranges::is_sorted(segments, std::ranges::greater(), &Segment::size));
      EXPECT_EQ(segments.back().end, stages);
    }
  }
}

TEST(EvenSegments, RefuseACountOutOfRangeNamingBothNumbers) {
  expect_says<OptionError>({"4 stages", "9 segments"}, [] { (void)even_segments(4, 9); });
  expect_says<OptionError>({"4 stages", "0 segments"}, [] { (void)even_segments(4, 0); });
  expect_says<OptionError>({"4 stages", "-2 segments"}, [] { (void)even_segments(4, -2); });
}

TEST(Segmentation, PrintsAStarWhereItReplays) {
  EXPECT_EQ(fmt::format("{}", Segmentation(9, {{{0, 3}, true}, {{3, 6}, true}, {{6, 9}, false}})),
            "[0,3)* [3,6)* [6,9)");
}

TEST(Segmentation, PrintsInBracketsHowAReplayIsCut) {
  const std::vector<SegmentNode> inside{{{0, 2}, true}, {{2, 4}, false}};
  EXPECT_EQ(fmt::format("{}", Segmentation(5, {{{0, 4}, true, inside}, {{4, 5}, false}})),
            "[0,4)*([0,2)* [2,4)) [4,5)");
}

TEST(Segmentation, AnOptionIsNeitherInsideAReplayNorMoved) {
  const SegmentNode kept{{0, 2}, false, {}, 1};
  EXPECT_EQ(to_string(Segmentation(3, {kept, {{2, 3}, true}})), "[0,2):1 [2,3)*");
  expect_says<PlanError>({"[0,2) runs option 1, but it is inside a replay", "beside"},
                         [&] { Segmentation(3, {{{0, 3}, true, {kept, {{2, 3}, false}}}}); });
  SegmentNode moved = kept;
  moved.tier = 2;
  expect_says<PlanError>({"[0,2) runs option 1, and is moved to tier 2"},
                         [&] { Segmentation(2, {moved}); });
}

TEST(Segmentation, OfNothingIsEmpty) {
  EXPECT_TRUE(Segmentation(0, {}).empty());
  EXPECT_EQ(Segmentation(0, {}), Segmentation());
  EXPECT_EQ(fmt::format("{}", Segmentation()), "");
}

TEST(Segmentation, RefusesAGap) {
  expect_says<PlanError>({"[0,9)", "[4,9) must begin at 3", "got: [0,3)* [4,9)"},
                         [] { Segmentation(9, {{{0, 3}, true}, {{4, 9}, false}}); });
}

TEST(Segmentation, RefusesAnOverlap) {
  expect_says<PlanError>({"[2,9) must begin at 3"},
                         [] { Segmentation(9, {{{0, 3}, true}, {{2, 9}, false}}); });
}

TEST(Segmentation, RefusesToStopShortOrRunOver) {
  expect_says<PlanError>({"[0,9)", "up to 3"}, [] { Segmentation(9, {{{0, 3}, true}}); });
  expect_says<PlanError>({"[0,2)", "up to 3"}, [] { Segmentation(2, {{{0, 3}, true}}); });
  expect_says<PlanError>({"[0,2)", "up to 0", "no segments"}, [] { Segmentation(2, {}); });
}

TEST(Segmentation, RefusesASegmentWithoutStages) {
  expect_says<PlanError>({"[0,0) has no stage"},
                         [] { Segmentation(2, {{{0, 0}, true}, {{0, 2}, true}}); });
  expect_says<PlanError>({"[0,-1) has no stage"}, [] { Segmentation(2, {{{0, -1}, true}}); });
}

TEST(Segmentation, HoldsTheInsideOfAReplayToTheSameRule) {
  expect_says<PlanError>({"[0,4)", "[3,4) must begin at 2"}, [] {
    Segmentation(4, {{{0, 4}, true, {{{0, 2}, true}, {{3, 4}, false}}}});
  });
  expect_says<PlanError>({"[0,4) is cut but not replayed"},
                         [] { Segmentation(4, {{{0, 4}, false, {{{0, 4}, true}}}}); });
}

}  // namespace
