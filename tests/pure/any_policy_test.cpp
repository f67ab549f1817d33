// SPDX-License-Identifier: BSD-3-Clause
#include "support/chains.hpp"
#include "support/messages.hpp"
#include <refrain/policy.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace {

namespace policy = refrain::policy;
using policy::AnyPolicy;
using policy::LastSegment;
using refrain::Chain;
using refrain::Segmentation;

/// A user's own policy, whole.
struct Odd {
  Segmentation cut(const Chain& chain) const {
    return policy::replay_where(chain, [](std::int64_t i) { return i % 2 == 1; });
  }
  std::string describe() const { return "odd()"; }
};
static_assert(policy::SegmentPolicy<Odd>);

struct OneTooFew {
  Segmentation cut(const Chain& chain) const {
    return policy::all().cut(support::chain_of(chain.size() - 1));
  }
  std::string describe() const { return "one_too_few()"; }
};

struct NoName {
  Segmentation cut(const Chain&) const { return {}; }
};
static_assert(!policy::SegmentPolicy<NoName> && !policy::SegmentPolicy<int>);

TEST(SegmentPolicy, OfYourOwnTakesTwoFunctions) {
  EXPECT_EQ(support::cut_text(Odd{}, 4), "[0,1) [1,2)* [2,4)");
}

TEST(SegmentPolicy, OfYourOwnPrintsByItsDescription) {
  EXPECT_EQ(fmt::format("{} {:>8}", Odd{}, Odd{}), "odd()    odd()");
}

TEST(SegmentPolicy, OfYourOwnMayReplayWholeSegments) {
  const auto cut = policy::replay_each(support::chain_of(3), {{0, 1}, {1, 3}}, LastSegment::Replay);
  EXPECT_EQ(fmt::format("{}", cut), "[0,1)* [1,3)*");
}

TEST(AnyPolicy, HoldsEachPolicyAndPrintsIt) {
  AnyPolicy any = policy::every(4);
  EXPECT_EQ(fmt::format("{}", any), "every(4)");
  any = Odd{};
  EXPECT_EQ(fmt::format("{}", any), "odd()");
}

TEST(AnyPolicy, RefusesAnAnswerForAnotherNumberOfStages) {
  support::expect_says<refrain::PlanError>(
      {"one_too_few()", "cut 3 stages", "has 4", "[0,1)* [1,2)* [2,3)"},
      [] { (void)support::cut_text(OneTooFew{}, 4); });
}

TEST(ReadyPolicies, PrintAsTheyAreWritten) {
  EXPECT_EQ(fmt::format("{} {} {} {} {}", policy::none(), policy::all(), policy::one_in(2),
                        policy::first(3), policy::segments(5)),
            "none() all() one_in(2) first(3) segments(5)");
  EXPECT_EQ(fmt::format("{} {} {} {}", policy::sqrt_n(), policy::binary(), policy::only<int>(),
                        policy::matching("*.attn")),
            R"(sqrt_n() binary() only<int>() matching("*.attn"))");
  EXPECT_EQ(
      fmt::format("{} {}", policy::every(4, LastSegment::Replay), policy::all(LastSegment::Replay)),
      "every(4, LastSegment::Replay) all(LastSegment::Replay)");
}

}  // namespace
