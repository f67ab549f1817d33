// SPDX-License-Identifier: BSD-3-Clause
#include "support/budgets.hpp"
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/seeded.hpp"
#include "support/stacks.hpp"
#include "support/twin.hpp"
#include <refrain/fit.hpp>
#include <refrain/memory.hpp>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

namespace {

namespace nn = torch::nn;
using namespace refrain::literals;
using refrain::Bytes;
using refrain::Profile;
using refrain::ProfileOptions;
using support::budget_between;
using torch::Tensor;

class Fit : public support::Seeded {
 protected:
  static ProfileOptions quick() { return ProfileOptions().repeats(1).seconds(0); }
};

TEST_F(Fit, ChangesNothingButMemory) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto layers = step.watch(support::gpt(4, 32, 40, /*drop=*/0.2));
    const auto ids = torch::randint(40, {4, 64});
    if constexpr (std::is_same_v<decltype(wrap), support::Quiet>) {
      for (const double share : {0.0, 0.4}) {
        const Profile profile = refrain::profile(quick(), layers, ids);
        auto fitted = refrain::fit(quick(), layers, budget_between(profile, share), ids);
        EXPECT_GT(fitted.plan().cost().forwards, profile.chain.size());
        step.backward(fitted(ids));
      }
    } else {
      for (int i = 0; i < 2; ++i) step.backward(layers->forward(ids));
    }
  });
}

TEST_F(Fit, KeepsItsWord) {
  std::vector<support::TransformerBlock> layers;
  for (int i = 0; i < 6; ++i) layers.emplace_back(32, 4, 0.0);
  const auto x = torch::randn({2, 16, 32}).requires_grad_();
  const Bytes allowed = budget_between(refrain::profile(quick(), layers, x), 0.3);
  auto fitted = refrain::fit(quick(), layers, allowed, x);
  EXPECT_LE(fitted.measured_peak(), allowed);
  EXPECT_LE(fitted.plan().predicted_peak(), allowed);
  refrain::reset_peak();
  auto y = fitted(x);
  y.sum().backward();
  EXPECT_LE(refrain::memory().peak, allowed + Bytes(16));  // the sum, and its gradient
  EXPECT_EQ(layers[0]->norm1->weight.grad().numel(), 32);
}

TEST_F(Fit, LeavesGradientsBuffersAndRandomNumbersAlone) {
  auto layers = support::resnet(4, 5);
  const auto x = torch::randn({2, 3, 16, 16});
  layers->forward(x).sum().backward();
  layers->parameters().front().mutable_grad() = Tensor();
  const auto gradient = layers->parameters().back().grad().clone();
  const auto mean = layers->buffers()[0].clone();
  torch::manual_seed(5);
  const auto next = torch::rand({2});
  torch::manual_seed(5);
  (void)refrain::fit(quick(), layers, 100_MiB + refrain::memory().live, x);
  EXPECT_TRUE(torch::equal(torch::rand({2}), next));
  EXPECT_TRUE(torch::equal(layers->parameters().back().grad(), gradient));
  EXPECT_FALSE(layers->parameters().front().grad().defined());
  EXPECT_TRUE(torch::equal(layers->buffers()[0], mean));
}

struct FittedNetImpl : nn::Module {
  explicit FittedNetImpl(refrain::CheckpointSequential chain)
      : layers(register_module("layers", std::move(chain))) {}
  Tensor forward(const Tensor& x) { return layers(x); }
  refrain::CheckpointSequential layers;
};

TEST_F(Fit, GivesAModuleLikeAnyOther) {
  nn::Sequential layers(support::Mlp(8), support::Mlp(8), support::Mlp(8));
  const auto x = torch::randn({4, 8});
  FittedNetImpl net(refrain::fit(quick(), layers, 100_MiB + refrain::memory().live, x));
  EXPECT_EQ(net.parameters().size(), layers->parameters().size());
  EXPECT_TRUE(torch::equal(net.forward(x), layers->forward(x)));
}

TEST_F(Fit, SaysWhatTheLeastPeakIsAndWhoSetsIt) {
  nn::Sequential layers(support::Mlp(8), nn::Linear(8, 4096), nn::Linear(4096, 8), support::Mlp(8));
  const auto x = torch::randn({64, 8});
  const std::string message = support::message_of<refrain::BudgetError>(
      [&] { (void)refrain::fit(quick(), layers, Bytes(1000), x); });
  EXPECT_THAT(message, testing::HasSubstr("no plan fits 1000 B: the least reachable peak is "));
  EXPECT_THAT(
      message,
      testing::HasSubstr(
          "are resident before the step; layer 2 (`torch::nn::LinearImpl`) sets the rest, "));
  EXPECT_THAT(message, testing::HasSubstr("what would help: a smaller batch"));
}

TEST_F(Fit, SaysThatNoPlanLowersTheLoss) {
  nn::Sequential layers(support::Mlp(8), support::Mlp(8));
  const auto wide = [](const Tensor& y) { return (y.unsqueeze(-1) * torch::ones({5000})).sum(); };
  const std::string message = support::message_of<refrain::BudgetError>(
      [&] { (void)refrain::fit(quick().loss(wide), layers, Bytes(1), torch::randn({4, 8})); });
  EXPECT_THAT(message, testing::HasSubstr("the loss sets the rest"));
  EXPECT_THAT(message, testing::HasSubstr("no plan lowers the loss"));
}

TEST_F(Fit, APlanForAnotherChainIsRefused) {
  const std::vector<support::Mlp> layers(3);
  const auto plan = refrain::plan(refrain::profile(quick(), layers, torch::randn({2, 8})), 1_GiB);
  EXPECT_THROW((void)refrain::checkpoint(std::vector<support::Mlp>(4), plan), refrain::PlanError);
}

TEST_F(Fit, AGenerousBudgetReplaysNothing) {
  std::vector<support::Mlp> layers(3);
  const auto x = torch::randn({2, 8});
  auto fitted = refrain::fit(quick(), layers, 1_GiB + refrain::memory().live, x);
  EXPECT_EQ(fmt::format("{}", fitted.cut()), "[0,3)");
  EXPECT_EQ(fitted.plan().overhead(), 0);
  EXPECT_THAT(fmt::format("{}", fitted.plan()), testing::HasSubstr("kept"));
}

TEST_F(Fit, ServesAStepUnderAutocast) {
  const std::vector<torch::nn::Linear> layers(4, torch::nn::Linear(64, 64));
  std::vector<torch::nn::Linear> own;
  for (int i = 0; i < 4; ++i) own.emplace_back(64, 64);
  const auto x = torch::randn({32, 64});
  const bool before = at::autocast::is_autocast_enabled(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  (void)own[0](x);  // the cache knows a cast
  for (const auto& chain : {layers, own}) {
    const auto fitted = refrain::fit(ProfileOptions(), chain, Bytes(100 << 20), x);
    EXPECT_EQ(fitted(x).scalar_type(), torch::kBFloat16);
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, before);
}

TEST_F(Fit, TakesALossThatChangesItself) {
  torch::nn::Linear head(64, 4);
  const auto target = torch::randint(4, {32});
  const auto options = ProfileOptions().loss([head, target](const Tensor& y) mutable {
    return torch::cross_entropy_loss(head(y), target);
  });
  const torch::nn::Sequential layers(torch::nn::Linear(64, 64), torch::nn::Tanh());
  EXPECT_GT(refrain::fit(options, layers, Bytes(100 << 20), torch::randn({32, 64}))
                .measured_peak()
                .count(),
            0);
}

}  // namespace
