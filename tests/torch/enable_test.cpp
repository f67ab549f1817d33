// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/seeded.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/checkpoint_sequential.hpp>
#include <refrain/enable.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace {

using support::expect_says;
using support::Mlp;
using torch::Tensor;
namespace nn = torch::nn;
namespace policy = refrain::policy;

/// Four wrapped blocks, of two types, and a head that is not.
struct NetImpl : nn::Module {
  explicit NetImpl(refrain::CheckpointOptions how = {})
      : a(register_module("a", refrain::checkpoint(Mlp(4), how))),
        b(register_module("b", refrain::checkpoint(Mlp(4), how))),
        c(register_module("c", refrain::checkpoint(support::Adapter(4), how))),
        d(register_module("d", refrain::checkpoint(Mlp(4), how))) {}
  Tensor forward(Tensor x) { return head(d(c(b(a(x))))); }
  refrain::Checkpoint<Mlp> a, b;
  refrain::Checkpoint<support::Adapter> c;
  refrain::Checkpoint<Mlp> d;
  nn::Linear head = register_module("head", nn::Linear(4, 4));
};
TORCH_MODULE(Net);

class Enable : public support::Seeded {
 protected:
  /// Which of the blocks a, b, d are replayed in one step.
  static std::string replayed(Net& net) {
    std::string names;
    const auto blocks = {std::pair("a", net->a), std::pair("b", net->b), std::pair("d", net->d)};
    for (const auto& [name, block] : blocks) block->inner()->runs = 0;
    net(torch::randn({2, 4})).sum().backward();
    for (const auto& [name, block] : blocks) {
      if (block->inner()->runs == 2) names += name;
    }
    return names;
  }

  static std::vector<bool> enabled(Net& net) {
    std::vector<bool> flags;
    for (const auto& region : refrain::regions(*net)) flags.push_back(region.enabled);
    return flags;
  }
};

TEST_F(Enable, IsHowAModelStarts) {
  Net net;
  EXPECT_EQ(replayed(net), "abd");
}

TEST_F(Enable, DisableMakesEveryRegionAPlainCall) {
  Net net;
  refrain::disable(*net);
  EXPECT_EQ(replayed(net), "");
  EXPECT_EQ(enabled(net), (std::vector<bool>{false, false, false, false}));
}

TEST_F(Enable, WithoutAPolicySwitchesAllOnAgain) {
  Net net;
  refrain::disable(*net);
  refrain::enable(*net);
  EXPECT_TRUE(replayed(net).starts_with("ab"));
}

TEST_F(Enable, SwitchesTheRegionsThatThePolicyNames) {
  Net net;
  refrain::enable(*net, policy::one_in(2));
  EXPECT_EQ(replayed(net), "a");
  EXPECT_EQ(enabled(net), (std::vector<bool>{true, false, true, false}));
  refrain::enable(*net, policy::first(2));
  EXPECT_EQ(replayed(net), "ab");
}

TEST_F(Enable, FindsRegionsByTypeAndByName) {
  Net net;
  refrain::enable(*net, policy::only<support::Adapter>());
  EXPECT_EQ(enabled(net), (std::vector<bool>{false, false, true, false}));
  refrain::enable(*net, policy::matching("b"));
  EXPECT_EQ(replayed(net), "b");
  refrain::enable(*net, policy::matching("?"));
  EXPECT_EQ(replayed(net), "abd");
}

TEST_F(Enable, GivesTheSameResultsWhateverIsOn) {
  Net net;
  const auto x = torch::randn({2, 4});
  const auto expected = net(x);
  for (const auto& how : {policy::none(), policy::all(), policy::one_in(3)}) {
    refrain::enable(*net, how);
    EXPECT_TRUE(torch::equal(net(x), expected)) << how.describe();
  }
}

TEST_F(Enable, ReachesRegionsInContainersAtAnyDepth) {
  nn::Sequential inner(refrain::checkpoint(Mlp(4)), nn::Linear(4, 4));
  nn::ModuleList model(nn::Linear(4, 4), inner, refrain::checkpoint(Mlp(4)));
  const auto found = refrain::regions(*model);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].name, "1.0");
  EXPECT_EQ(found[1].name, "2");
  refrain::disable(*model);
  for (const auto& region : refrain::regions(*model)) EXPECT_FALSE(region.enabled);
}

TEST_F(Enable, RegionsTellNameTypeStateAndSettings) {
  Net net(refrain::CheckpointOptions().rng(refrain::Rng::Ignore));
  refrain::enable(*net, policy::first(1));
  const auto found = refrain::regions(*net);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0].name, "a");
  EXPECT_NE(found[0].type.find("Mlp"), std::string::npos);
  EXPECT_NE(found[2].type.find("Adapter"), std::string::npos);
  EXPECT_EQ(found[0].options.rng(), refrain::Rng::Ignore);
  EXPECT_TRUE(found[0].enabled);
  EXPECT_FALSE(found[1].enabled);
}

TEST_F(Enable, RegionsArePrintable) {
  Net net;
  refrain::disable(*net);
  const auto text = fmt::format("{}", refrain::regions(*net).at(0));
  EXPECT_NE(text.find('a'), std::string::npos);
  EXPECT_NE(text.find("Mlp"), std::string::npos);
}

TEST_F(Enable, AModelWithoutRegionsIsAnErrorThatSaysWhatToDo) {
  nn::Sequential plain(nn::Linear(4, 4));
  expect_says<refrain::Error>({"refrain: ", "checkpoint"}, [&] { refrain::enable(*plain); });
}

TEST_F(Enable, APolicyThatMatchesNothingIsAnErrorThatListsTheRegions) {
  Net net;
  expect_says<refrain::Error>({"refrain: ", "matching(\"*.attn\")", "4", "a"},
                              [&] { refrain::enable(*net, policy::matching("*.attn")); });
  expect_says<refrain::Error>({"refrain: ", "only<"},
                              [&] { refrain::enable(*net, policy::only<nn::LSTM>()); });
  EXPECT_EQ(replayed(net), "abd") << "a failed enable changes nothing";
}

TEST_F(Enable, ARegionCalledBeforeIsReplayedAsItWasCalled) {
  Net net;
  const auto y = net(torch::randn({2, 4}));
  refrain::disable(*net);
  net->a->inner()->runs = 0;
  y.sum().backward();
  EXPECT_EQ(net->a->inner()->runs, 1);
}

TEST_F(Enable, CountsABlockWithTwoNamesOnce) {
  struct SharedImpl : nn::Module {
    SharedImpl() {
      register_module("first", block);
      register_module("again", block);
    }
    refrain::Checkpoint<Mlp> block = refrain::checkpoint(Mlp(4));
  } net;
  const auto regions = refrain::enable(net, policy::one_in(2));
  ASSERT_EQ(regions.size(), 1U);
  EXPECT_EQ(regions[0].name, "first");
  EXPECT_TRUE(regions[0].enabled);
}

}  // namespace
