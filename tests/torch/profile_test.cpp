// SPDX-License-Identifier: BSD-3-Clause
#include "support/modules.hpp"
#include "support/seeded.hpp"
#include "support/stacks.hpp"
#include <refrain/profiler.hpp>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

namespace nn = torch::nn;
using refrain::Profile;
using refrain::ProfileOptions;
using refrain::Segment;
using torch::Tensor;
using ProfiledFunction = std::function<Tensor(Tensor)>;

class Profiled : public support::Seeded {
 protected:
  /// One repeat: what is looked at is not time.
  static ProfileOptions quick() { return ProfileOptions().repeats(1).seconds(0); }

  template <class Layers, class... Inputs>
  static Profile profile(const Layers& layers, const Inputs&... inputs) {
    return refrain::profile(quick(), layers, inputs...);
  }
};

TEST_F(Profiled, HooksAndAllocatorAgreeOnWhatAStageKeeps) {
  const auto images = torch::randn({2, 3, 16, 16});
  for (const Profile& profile :
       {profile(support::gpt(2, 32, 50, 0.1), torch::randint(50, {2, 8})),
        profile(support::resnet(4, 5), images),
        profile(std::vector<support::LstmLayer>{support::LstmLayer(6, 8), support::LstmLayer(8, 8)},
                torch::randn({2, 5, 6}).requires_grad_())}) {
    for (const auto& stage : profile.chain.stages) {
      EXPECT_EQ(stage.saved_tensors, stage.plain.saved) << stage.name;
      EXPECT_GE(stage.plain.forward_peak, stage.plain.saved) << stage.name;
      EXPECT_GT(stage.plain.forward, 0) << stage.name;
      EXPECT_GT(stage.plain.backward, 0) << stage.name;
    }
  }
}

TEST_F(Profiled, SaysWhenAStageKeepsMoreThanAutograd) {
  std::vector<Tensor> cache;
  const std::vector<ProfiledFunction> layers = {[](const Tensor& x) { return x.sin(); },
                                                [&cache](const Tensor& x) {
                                                  cache.push_back(torch::ones({1000}));
                                                  return x.cos();
                                                }};
  const Profile profile = this->profile(layers, torch::randn({100}).requires_grad_());
  EXPECT_EQ(profile.chain[1].plain.saved - profile.chain[1].saved_tensors, 4000);
  EXPECT_THAT(to_string(profile),
              testing::HasSubstr("layers 1: 3.91 KiB of what stays is not saved by autograd"));
}

TEST_F(Profiled, LeavesEverythingAsItWas) {
  auto layers = support::resnet(4, 5);
  const auto x = torch::randn({2, 3, 16, 16}).requires_grad_();
  layers->push_back(nn::Dropout(0.5));
  layers->forward(x).sum().backward();
  layers->parameters().back().mutable_grad() = Tensor();  // one without
  std::vector<Tensor> before;
  for (const auto& buffer : layers->buffers()) before.push_back(buffer.clone());
  std::vector<Tensor> gradients;
  for (const auto& parameter : layers->parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
  const auto x_gradient = x.grad().clone();
  torch::manual_seed(3);
  const auto next = torch::rand({4});
  torch::manual_seed(3);

  (void)profile(layers, x);

  EXPECT_TRUE(torch::equal(torch::rand({4}), next));
  EXPECT_TRUE(torch::equal(x.grad(), x_gradient));
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(torch::equal(layers->buffers()[i], before[i])) << i;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Tensor now = layers->parameters()[i].grad();
    ASSERT_EQ(now.defined(), gradients[i].defined()) << i;
    if (now.defined()) {
      EXPECT_TRUE(torch::equal(now, gradients[i])) << i;
    }
  }
}

TEST_F(Profiled, LeavesEverythingAsItWasWhenALayerThrows) {
  nn::BatchNorm1d norm(4);
  const auto mean = norm->running_mean.clone();
  const std::vector<ProfiledFunction> layers = {[&norm](const Tensor& x) { return norm(x); },
                                                [](const Tensor& x) -> Tensor {
                                                  (void)torch::rand({3});
                                                  if (x.dim() == 2) throw std::runtime_error("no");
                                                  return x;
                                                }};
  torch::manual_seed(3);
  const auto next = torch::rand({4});
  torch::manual_seed(3);
  EXPECT_THROW((void)profile(layers, torch::randn({6, 4})), std::runtime_error);
  torch::manual_seed(3);
  EXPECT_TRUE(torch::equal(torch::rand({4}), next));
  EXPECT_TRUE(torch::equal(norm->running_mean, mean));
  EXPECT_FALSE(norm->weight.grad().defined());
}

TEST_F(Profiled, LayersThatCannotBePartedAreOneStage) {
  const Profile profile = this->profile(support::resnet(4, 5), torch::randn({2, 3, 16, 16}));
  // The ReLU writes into BatchNorm's result; flatten gives back the pool's.
  const std::vector<Segment> expected = {{0, 1}, {1, 3}, {3, 4}, {4, 5},  {5, 6},
                                         {6, 7}, {7, 8}, {8, 9}, {9, 11}, {11, 12}};
  EXPECT_EQ(profile.layers, expected);
  EXPECT_EQ(profile.layer_count(), 12);
}

TEST_F(Profiled, WhatNobodySavesBetweenTwoStagesIsSeenToGo) {
  nn::Sequential layers(nn::Linear(8, 8), nn::ReLU(), nn::Linear(8, 8), nn::Tanh());
  const Profile profile = this->profile(layers, torch::randn({4, 8}));
  EXPECT_EQ(profile.chain.size(), 4);
  const std::int64_t bytes = 4 * 8 * 4;
  EXPECT_EQ(profile.chain[1].input_saved_by_nobody, bytes);  // ReLU saves its result
  EXPECT_EQ(profile.chain[2].input_saved_by_nobody, 0);
  EXPECT_EQ(profile.chain[3].input_unsaved, bytes);
}

TEST_F(Profiled, FrozenLayersInFrontKeepNothing) {
  std::vector<nn::Linear> layers;
  for (int i = 0; i < 5; ++i) layers.emplace_back(8, 8);
  for (int i = 0; i < 3; ++i) {
    for (auto& parameter : layers[static_cast<std::size_t>(i)]->parameters())
      parameter.requires_grad_(false);
  }
  const Profile profile = this->profile(layers, torch::randn({4, 8}));
  const std::int64_t bytes = 4 * 8 * 4;
  EXPECT_EQ(profile.chain[1].plain.saved, bytes);            // its result alone,
  EXPECT_EQ(profile.chain[2].input_saved_by_nobody, bytes);  // which goes
}

TEST_F(Profiled, WhatIsHandedOnCountsOnce) {
  using Pair = std::pair<Tensor, Tensor>;
  std::vector<std::function<Pair(Pair)>> layers(
      3, [](const Pair& x) { return Pair((x.first * 2).sigmoid(), x.second); });
  layers.insert(layers.begin(), [](const Pair& x) { return Pair(x.first.sin(), x.first > 0); });
  const auto x = torch::randn({100}).requires_grad_();
  const Profile profile = this->profile(layers, Pair(x, x));
  EXPECT_EQ(profile.chain.size(), 4);
  EXPECT_EQ(profile.chain[2].output, 400);
}

TEST_F(Profiled, ATensorOfAnotherComputationIsRefusedAndItsGraphLeftAlone) {
  const auto w = torch::randn({8, 8}).requires_grad_();
  const auto memory = torch::tanh(torch::randn({4, 8}).mm(w));
  const std::vector<ProfiledFunction> layers(2, [memory](const Tensor& x) { return x * memory; });
  const auto x = torch::randn({4, 8}).requires_grad_();
  EXPECT_THROW((void)profile(layers, x), refrain::OptionError);
  layers[0](x).sum().backward();  // its graph is there still
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(Profiled, AnArgumentOfAnotherComputationIsTaken) {
  const auto w = torch::randn({8, 8}).requires_grad_();
  const auto memory = torch::tanh(torch::randn({4, 8}).mm(w));
  const std::vector<std::function<Tensor(Tensor, Tensor)>> layers(
      2, [](const Tensor& x, const Tensor& m) { return x * m; });
  EXPECT_EQ(profile(layers, torch::randn({4, 8}).requires_grad_(), memory).chain.size(), 2);
  memory.sum().backward();
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(Profiled, AGradientIsCountedWhereItIsMade) {
  nn::Linear shared(8, 8);
  const std::vector<ProfiledFunction> layers(
      3, [shared](const Tensor& x) mutable { return shared(x).tanh(); });
  const auto x = torch::randn({4, 8}).requires_grad_();
  const std::int64_t bytes = (8 * 8 + 8) * 4;
  const Profile fresh = profile(layers, x);
  EXPECT_EQ(fresh.chain[2].gradients, bytes);  // its backward comes first
  EXPECT_EQ(fresh.chain[1].gradients, 0);
  EXPECT_EQ(fresh.chain[0].gradients, 0);
  for (auto& parameter : shared->parameters())
    parameter.mutable_grad() = torch::zeros_like(parameter);
  // The engine gathers what comes from three stages before it adds it up.
  EXPECT_EQ(profile(layers, x).chain[2].gradients, bytes);
}

TEST_F(Profiled, TakesExtraArgumentsOfEveryLayer) {
  const std::vector<std::function<Tensor(Tensor, Tensor, double)>> layers(
      3, [](const Tensor& x, const Tensor& w, double scale) { return (x * w).sin() * scale; });
  const auto w = torch::randn({16}).requires_grad_();
  const Profile profile = this->profile(layers, torch::randn({4, 16}).requires_grad_(), w, 0.5);
  EXPECT_EQ(profile.chain.size(), 3);
  EXPECT_FALSE(w.grad().defined());
}

TEST_F(Profiled, MeasuresTheLossThatItIsGiven) {
  const std::vector<nn::Linear> layers = {nn::Linear(8, 100), nn::Linear(100, 100)};
  const auto options = [] { return quick().output(refrain::StepOutput::Dropped); };
  const auto x = torch::randn({4, 8});
  const Profile without = refrain::profile(options(), layers, x);
  EXPECT_FALSE(without.measured_loss);
  EXPECT_EQ(without.chain.loss_peak, 4 * 100 * 4);
  const auto wide = [](const Tensor& y) { return (y.unsqueeze(-1) * torch::ones({50})).sum(); };
  const Profile with = refrain::profile(options().loss(wide), layers, x);
  EXPECT_TRUE(with.measured_loss);
  EXPECT_GE(with.chain.loss_peak, 4 * 100 * 50 * 4);
  EXPECT_GT(with.chain.loss, 0);
}

TEST_F(Profiled, TellsHowFarItIs) {
  std::vector<std::pair<std::int64_t, std::int64_t>> told;
  (void)refrain::profile(quick().progress([&told](std::int64_t done, std::int64_t all) {
    told.emplace_back(done, all);
  }),
                         std::vector<support::Mlp>(3), torch::randn({2, 8}));
  EXPECT_EQ(told, (std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 3}, {2, 3}, {3, 3}}));
}

TEST_F(Profiled, RefusesWhatCannotBeMeasured) {
  EXPECT_THROW((void)profile(std::vector<support::Mlp>(), torch::randn({2, 8})),
               refrain::OptionError);
  EXPECT_THROW((void)ProfileOptions().repeats(0), refrain::OptionError);
  EXPECT_THROW((void)ProfileOptions().seconds(std::nan("")), refrain::OptionError);
  const auto wrong = ProfileOptions().loss<std::vector<Tensor>>(
      [](const std::vector<Tensor>& all) { return all[0].sum(); });
  EXPECT_THROW((void)refrain::profile(wrong, std::vector<support::Mlp>(2), torch::randn({2, 8})),
               refrain::OptionError);
}

struct HiddenPair {
  Tensor a, b;
};
struct MakesHiddenPairImpl : nn::Module {
  HiddenPair forward(const Tensor& x) { return {x.sin(), x.cos()}; }
};
TORCH_MODULE(MakesHiddenPair);
struct TakesHiddenPairImpl : nn::Module {
  Tensor forward(const HiddenPair& pair) { return pair.a * pair.b; }
};
TORCH_MODULE(TakesHiddenPair);

TEST_F(Profiled, RefusesAStructWhoseTensorsItCannotFind) {
  const nn::Sequential layers{MakesHiddenPair(), TakesHiddenPair()};
  try {
    (void)profile(layers, torch::randn({2, 8}));
    FAIL();
  } catch (const refrain::OptionError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("cannot profile layer `0`"),
                                             testing::HasSubstr("visit_tensors")));
  }
}

TEST_F(Profiled, RefusesInferenceModeAndLossesWithoutAGradient) {
  const std::vector<support::Mlp> layers(2);
  const auto x = torch::randn({2, 8});
  {
    const c10::InferenceMode on;
    EXPECT_THROW((void)profile(layers, x), refrain::OptionError);
  }
  const auto refused = [&](const std::function<Tensor(Tensor)>& loss, const char* said) {
    try {
      (void)refrain::profile(quick().loss(loss), layers, x);
      ADD_FAILURE() << said;
    } catch (const refrain::OptionError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(said));
    }
  };
  refused([](const Tensor& y) { return y.sin(); }, "a loss that gives float32[2, 8]");
  refused([](const Tensor& y) { return y.detach().sum(); }, "without a graph");
  refused([](const Tensor&) { return Tensor(); }, "gives no tensor");
}

TEST_F(Profiled, SignaturesTellWhatDoesNotTrain) {
  const auto x = torch::randn({2, 8});
  const auto difference = [&](const std::function<void(std::vector<support::Mlp>&)>& change) {
    std::vector<support::Mlp> layers(2);
    const auto then = refrain::signature(layers, x);
    change(layers);
    return refrain::first_difference(then, refrain::signature(layers, x));
  };
  EXPECT_EQ(difference([](auto&) {}), "");
  EXPECT_THAT(difference([](auto& layers) { layers[1]->eval(); }),
              testing::HasSubstr("all in eval mode now"));
  EXPECT_THAT(difference([](auto& layers) { layers[1]->parameters()[0].requires_grad_(false); }),
              testing::HasSubstr(", frozen now"));
  EXPECT_EQ(refrain::first_difference(
                refrain::signature(std::vector<support::Mlp>(2), x),
                refrain::signature(std::vector<support::Mlp>(2), x.clone().requires_grad_())),
            "input 0: float32[2, 8] then, float32[2, 8], with a gradient now");
}

}  // namespace
