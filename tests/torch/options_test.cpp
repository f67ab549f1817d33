// SPDX-License-Identifier: BSD-3-Clause
#include "support/modules.hpp"
#include "support/seeded.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/checkpoint_sequential.hpp>

#include <torch/torch.h>

#include <string>
#include <vector>

namespace {

using refrain::Check;
using refrain::CheckpointOptions;
using refrain::EarlyStop;
using refrain::Rng;
using refrain::Route;
using support::Mlp;
using torch::Tensor;
namespace nn = torch::nn;
namespace policy = refrain::policy;

class Options : public support::Seeded {};

TEST_F(Options, HaveCarefulDefaults) {
  const CheckpointOptions how;
  EXPECT_EQ(how.rng(), Rng::Preserve);
  EXPECT_EQ(how.check(), Check::Metadata);
  EXPECT_EQ(how.route(), Route::Hooks);
  EXPECT_EQ(how.early_stop(), EarlyStop::Auto);
  EXPECT_TRUE(how.name().empty() && how.generators().empty() && how.state().empty());
}

TEST_F(Options, AreSetOneByOneByName) {
  const auto how = CheckpointOptions()
                       .name("decoder")
                       .rng(Rng::Ignore)
                       .check(Check::None)
                       .route(Route::Function)
                       .early_stop(EarlyStop::Off)
                       .state({torch::zeros(1)});
  EXPECT_EQ(how.name(), "decoder");
  EXPECT_EQ(how.rng(), Rng::Ignore);
  EXPECT_EQ(how.check(), Check::None);
  EXPECT_EQ(how.route(), Route::Function);
  EXPECT_EQ(how.early_stop(), EarlyStop::Off);
  EXPECT_EQ(how.state().size(), 1U);
}

TEST_F(Options, MayBeASingleValueForABlock) {
  Mlp block(4);
  EXPECT_EQ(refrain::checkpoint(block, Rng::Ignore)->options().rng(), Rng::Ignore);
  EXPECT_EQ(refrain::checkpoint(block, Route::Function)->options().route(), Route::Function);
  EXPECT_EQ(refrain::checkpoint(Mlp(4), Check::None)->options().check(), Check::None);
}

TEST_F(Options, MayBeASingleValueForAFunction) {
  auto sine = [](Tensor x) { return x.sin(); };
  EXPECT_EQ(refrain::checkpoint(sine, EarlyStop::Off).options().early_stop(), EarlyStop::Off);
}

TEST_F(Options, MayBeASingleValueForAChain) {
  std::vector<Mlp> blocks{Mlp(4), Mlp(4)};
  nn::Sequential layers(Mlp(4), Mlp(4));
  EXPECT_EQ(refrain::checkpoint(blocks, policy::all(), Rng::Ignore).options().rng(), Rng::Ignore);
  EXPECT_EQ(refrain::checkpoint(layers, policy::all(), Rng::Ignore)->options().rng(), Rng::Ignore);
}

TEST_F(Options, AVectorWithoutAPolicyHasEachBlockReplayed) {
  std::vector<Mlp> blocks{Mlp(4), Mlp(4), Mlp(4)};
  refrain::checkpoint(blocks)(torch::randn({2, 4})).sum().backward();
  EXPECT_EQ(blocks[0]->runs + blocks[1]->runs + blocks[2]->runs, 5);
}

TEST_F(Options, BuildABlockInPlace) {
  auto quiet = refrain::checkpoint<Mlp>(6, 0.25);
  EXPECT_EQ(quiet->inner()->fc1->options.in_features(), 6);
  EXPECT_EQ(quiet->inner()->dropout->options.p(), 0.25);
}

TEST_F(Options, ANameShowsInMessagesOfEachRegion) {
  auto quiet = refrain::checkpoint(Mlp(4), CheckpointOptions().name("decoder.7"));
  const auto y = quiet(torch::randn({2, 4}));
  {
    const torch::NoGradGuard no_grad;
    quiet->inner()->fc1->weight.add_(1);
  }
  try {
    y.sum().backward();
    ADD_FAILURE() << "a changed parameter went unnoticed";
  } catch (const refrain::DivergenceError& error) {
    EXPECT_NE(std::string(error.what()).find("decoder.7"), std::string::npos) << error.what();
  }
}

}  // namespace
