// SPDX-License-Identifier: BSD-3-Clause
#include "support/chains.hpp"
#include "support/messages.hpp"
#include <refrain/policy.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

namespace policy = refrain::policy;
using refrain::OptionError;
using support::expect_says;

struct AttentionImpl {};
struct Attention {  // a holder, as LibTorch's are
  using ContainedType = AttentionImpl;
};
struct MlpImpl {};

refrain::Chain transformer() {
  refrain::Chain chain;
  for (const char* layer : {"layers.0", "layers.1", "layers.10"}) {
    chain.stages.push_back({std::string(layer) + ".attn", "AttentionImpl", typeid(AttentionImpl)});
    chain.stages.push_back({std::string(layer) + ".mlp", "MlpImpl", typeid(MlpImpl)});
  }
  return chain;
}

std::string cut(const policy::AnyPolicy& policy) { return to_string(policy.cut(transformer())); }

TEST(OnlyPolicy, ReplaysTheStagesOfAType) {
  EXPECT_EQ(cut(policy::only<AttentionImpl>()), "[0,1)* [1,2) [2,3)* [3,4) [4,5)* [5,6)");
}

TEST(OnlyPolicy, TakesAHolderForItsModule) {
  EXPECT_EQ(cut(policy::only<Attention>()), cut(policy::only<AttentionImpl>()));
}

TEST(OnlyPolicy, ReplaysTheLastStageTooForItWasNamed) {
  EXPECT_EQ(cut(policy::only<MlpImpl>()), "[0,1) [1,2)* [2,3) [3,4)* [4,5) [5,6)*");
}

TEST(OnlyPolicy, PrintsTheTypeAsItIsWritten) {
  EXPECT_EQ(policy::only<std::vector<int>>().describe().rfind("only<std::vector<int", 0), 0);
}

TEST(OnlyPolicy, SaysWhichTypesThereAreWhenNoneMatches) {
  expect_says<OptionError>({"only<int>()", "none of 6 stages", "`layers.0.attn` (AttentionImpl)"},
                           [] { (void)cut(policy::only<int>()); });
}

TEST(MatchingPolicy, ReplaysTheStagesWhoseNameFits) {
  EXPECT_EQ(cut(policy::matching("*.mlp")), "[0,1) [1,2)* [2,3) [3,4)* [4,5) [5,6)*");
  EXPECT_EQ(cut(policy::matching("layers.?.attn")), "[0,1)* [1,2) [2,3)* [3,6)");
  EXPECT_EQ(cut(policy::matching("layers.1*")), "[0,2) [2,3)* [3,4)* [4,5)* [5,6)*");
}

TEST(MatchingPolicy, SaysWhichNamesThereAreWhenNoneFits) {
  expect_says<OptionError>({R"(matching("*.atn"))", "none of 6 stages", "`layers.0.mlp`"},
                           [] { (void)cut(policy::matching("*.atn")); });
}

TEST(MatchingPolicy, ComparesWholeNames) {
  const auto fits = [](const std::string& glob, const std::string& name) {
    try {
      const auto cut = policy::matching(glob).cut({{{name, "", typeid(void)}}, {}});
      return cut.nodes().front().replayed;
    } catch (const OptionError&) {
      return false;
    }
  };
  EXPECT_TRUE(fits("", "") && fits("*", "") && fits("**", "ab") && fits("a*b*c", "a.b.b.c"));
  EXPECT_TRUE(fits("*ab", "aab") && fits("a?c", "abc") && fits("*a*", "bab"));
  EXPECT_FALSE(fits("", "a") || fits("a", "ab") || fits("b", "ab") || fits("?", "") ||
               fits("a*b", "ab.") || fits("a?", "a"));
}

}  // namespace
