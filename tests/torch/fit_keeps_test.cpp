// SPDX-License-Identifier: BSD-3-Clause
#include "support/budgets.hpp"
#include "support/messages.hpp"
#include "support/seeded.hpp"
#include "support/stacks.hpp"
#include "support/twin.hpp"
#include <refrain/fit.hpp>
#include <refrain/memory.hpp>
#include <refrain/plan_file.hpp>
#include <refrain/policy.hpp>
#include <refrain/tier/arena.hpp>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace {

namespace policy = refrain::policy;
using refrain::Bytes;
using refrain::CheckpointOptions;
using refrain::Plan;
using refrain::Profile;
using refrain::ProfileOptions;
using refrain::SegmentNode;
using support::budget_between;
using torch::Tensor;

/// Plans whose layers may keep some of what they make, and replay the rest.
class FitKeeping : public support::Seeded {
 protected:
  static ProfileOptions quick() {
    return ProfileOptions().repeats(1).seconds(0).keeps({policy::keep_matmuls()});
  }
  static std::vector<support::TransformerBlock> blocks() {
    std::vector<support::TransformerBlock> layers;
    layers.reserve(6);
    for (int i = 0; i < 6; ++i) layers.emplace_back(32, 4, 0.0);
    return layers;
  }
  static Tensor input() { return torch::randn({2, 32, 32}).requires_grad_(); }

  static bool uses_options(const Plan& plan) {
    const auto& nodes = plan.layers().nodes();
    return std::any_of(nodes.begin(), nodes.end(),
                       [](const SegmentNode& node) { return node.option != 0; });
  }
  /// A profile where a replay is so dear that plans keep products rather.
  static Profile dear_replays(Profile profile) {
    for (refrain::StageCost& stage : profile.chain.stages) {
      stage.nograd_forward = 1;
      stage.tail = 0;
      stage.plain.forward = 1;
      stage.plain.backward = 1;
      for (refrain::GradRun& option : stage.options) {
        option.forward = 1;
        option.backward = 1.1;
      }
    }
    return profile;
  }
};

TEST_F(FitKeeping, EachOptionIsMeasured) {
  const auto profile = refrain::profile(quick().keeps({policy::keep_matmuls(), policy::OpPolicy()}),
                                        blocks(), input());
  EXPECT_THAT(profile.keeps, testing::ElementsAre("keep_matmuls()", ""));
  for (const refrain::StageCost& stage : profile.chain.stages) {
    ASSERT_EQ(stage.options.size(), 2U);
    EXPECT_LT(stage.options[0].saved, stage.plain.saved);
    EXPECT_GT(stage.options[0].saved, stage.options[1].saved);
    EXPECT_EQ(stage.options[1].saved, stage.output) << "nothing kept";
    EXPECT_GE(stage.options[0].backward, stage.plain.backward);
    EXPECT_GT(stage.options[0].backward_peak, stage.options[0].saved);
  }
}

TEST_F(FitKeeping, ThePlanSaysWhatIsKept) {
  const auto profile = dear_replays(refrain::profile(quick(), blocks(), input()));
  const Plan plan = refrain::plan(profile, budget_between(profile, 0.6));
  ASSERT_TRUE(uses_options(plan)) << to_string(plan.layers());
  EXPECT_THAT(to_string(plan), testing::HasSubstr("replayed but for keep_matmuls()"));
}

TEST_F(FitKeeping, GradientsAreThePlainOnes) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto layers = step.watch(support::gpt(4, 32, 40, /*drop=*/0.2));
    const auto ids = torch::randint(40, {4, 64});
    if constexpr (std::is_same_v<decltype(wrap), support::Quiet>) {
      const auto profile = dear_replays(refrain::profile(quick(), layers, ids));
      const Plan plan = refrain::plan(profile, budget_between(profile, 0.6));
      EXPECT_TRUE(uses_options(plan)) << to_string(plan.layers());
      auto chain =
          refrain::checkpoint(layers, plan, CheckpointOptions().keeps({policy::keep_matmuls()}));
      for (int i = 0; i < 2; ++i) step.backward(chain(ids));
    } else {
      for (int i = 0; i < 2; ++i) step.backward(layers->forward(ids));
    }
  });
}

TEST_F(FitKeeping, KeepsItsWordAndBeatsReplaysOfWholeLayers) {
  const auto layers = blocks();
  const auto x = input();
  const auto with = dear_replays(refrain::profile(quick(), layers, x));
  auto without = with;
  for (refrain::StageCost& stage : without.chain.stages) stage.options.clear();
  int better = 0;
  for (const double share : {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}) {
    const Bytes budget = budget_between(without, share);
    const double seconds = refrain::plan(with, budget).predicted_seconds();
    const double seconds_without = refrain::plan(without, budget).predicted_seconds();
    EXPECT_LE(seconds, seconds_without);
    better += seconds < seconds_without ? 1 : 0;
    auto fitted = refrain::fit(quick(), layers, budget, x);
    EXPECT_LE(fitted.measured_peak(), budget);
  }
  EXPECT_GT(better, 1);
}

TEST_F(FitKeeping, GoesTogetherWithTiers) {
  const auto layers = blocks();
  const auto x = input();
  const auto options = quick().tiers({refrain::tier::arena(Bytes(std::int64_t{1} << 22))});
  const auto profile = dear_replays(refrain::profile(options, layers, x));
  const refrain::Links fast = {.tier = "arena", .out = 1e13, .back = 1e13};
  const refrain::Links slow = {.tier = "arena", .out = 1e7, .back = 1e7};
  for (const auto& links : {fast, slow}) {
    for (const double share : {0.3, 0.6}) {
      const Bytes budget = budget_between(profile, share);
      const Plan plan = refrain::plan(profile, budget, {links});
      EXPECT_LE(plan.predicted_seconds(), refrain::plan(profile, budget).predicted_seconds());
      auto chain = refrain::checkpoint(
          layers, plan, CheckpointOptions().tiers(options.tiers()).keeps({policy::keep_matmuls()}));
      auto plain = x;
      for (auto layer : layers) plain = layer(plain);
      EXPECT_TRUE(torch::equal(chain(x), plain));
      const auto grads = torch::autograd::grad({chain(x).square().sum()}, {x});
      const auto plain_grads = torch::autograd::grad({plain.square().sum()}, {x});
      EXPECT_TRUE(torch::equal(grads[0], plain_grads[0])) << to_string(plan.layers());
    }
    EXPECT_LE(refrain::fit(options, layers, budget_between(profile, 0.3), x).measured_peak(),
              budget_between(profile, 0.3));
  }
}

TEST_F(FitKeeping, OnTheFunctionRouteToo) {
  const auto layers = blocks();
  const auto x = input();
  const auto options = quick().checkpoint(refrain::Route::Function);
  const auto profile = dear_replays(refrain::profile(options, layers, x));
  auto plain = x;
  for (auto layer : layers) plain = layer(plain);
  const auto plain_grads = torch::autograd::grad({plain.square().sum()}, {x});
  for (const double share : {0.2, 0.6}) {
    const Bytes budget = budget_between(profile, share);
    const Plan plan = refrain::plan(profile, budget);
    EXPECT_EQ(uses_options(plan), share > 0.5) << to_string(plan.layers());
    auto chain = refrain::checkpoint(
        layers, plan, CheckpointOptions(refrain::Route::Function).keeps({policy::keep_matmuls()}));
    refrain::reset_peak();
    auto y = chain(x);
    const auto grads = torch::autograd::grad({y.square().sum()}, {x});
    EXPECT_LE(refrain::memory().peak, budget + Bytes(y.nbytes() * 3)) << "of the loss";
    EXPECT_TRUE(torch::equal(grads[0], plain_grads[0]));
    EXPECT_LE(refrain::fit(options, layers, budget, x).measured_peak(), budget);
  }
}

TEST_F(FitKeeping, SurvivesAPlanFile) {
  const auto layers = blocks();
  const auto x = input();
  const auto profile = dear_replays(refrain::profile(quick(), layers, x));
  const Plan plan = refrain::plan(profile, budget_between(profile, 0.6));
  EXPECT_EQ(refrain::plan_from_text(refrain::to_file_text(plan)), plan);
}

/// Gives its input back, so that no cut is possible behind it.
struct HandsOnImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x.view(x.sizes()); }
};
TORCH_MODULE(HandsOn);

TEST_F(FitKeeping, AStageOfTwoLayersIsOneRegion) {
  torch::nn::Sequential layers;
  for (int i = 0; i < 4; ++i) {
    layers->push_back(support::TransformerBlock(32, 4, 0.0));
    layers->push_back(HandsOn());
  }
  const auto x = input();
  const auto profile = dear_replays(refrain::profile(quick(), layers, x));
  ASSERT_EQ(profile.chain.size(), 4);
  const Plan plan = refrain::plan(profile, budget_between(profile, 0.5));
  ASSERT_TRUE(uses_options(plan));
  for (const SegmentNode& node : plan.layers()) {
    if (node.option == 0) continue;
    EXPECT_EQ(node.range.size(), 2) << to_string(plan.layers());
  }
  auto chain =
      refrain::checkpoint(layers, plan, CheckpointOptions().keeps({policy::keep_matmuls()}));
  EXPECT_TRUE(torch::equal(chain(x), layers->forward(x)));
}

/// A dear product of little memory, and then much memory of no worth.
struct DearProductImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = x.mm(weight);
    for (int i = 0; i < 6; ++i) y = y.relu();
    return y;
  }
  Tensor weight = register_parameter("weight", torch::randn({1024, 1024}) / 32);
};
TORCH_MODULE(DearProduct);

TEST_F(FitKeeping, FitKeepsWhatIsDearToReplay) {
  std::vector<DearProduct> layers;
  for (int i = 0; i < 6; ++i) layers.emplace_back();
  const auto x = torch::randn({64, 1024}).requires_grad_();
  auto plain = x;
  for (auto layer : layers) plain = layer(plain);
  plain.sum().backward();  // or else the peak would be the gradients, made one by one
  const auto options = ProfileOptions().keeps({policy::keep_matmuls()});
  const Bytes budget = budget_between(refrain::profile(options, layers, x), 0.5);
  auto fitted = refrain::fit(options, layers, budget, x);
  EXPECT_TRUE(uses_options(fitted.plan())) << to_string(fitted.plan());
  EXPECT_LE(fitted.measured_peak(), budget);
  plain = x;
  for (auto layer : layers) plain = layer(plain);
  const auto grads = torch::autograd::grad({fitted(x).sum()}, {x, layers[2]->weight});
  const auto plain_grads = torch::autograd::grad({plain.sum()}, {x, layers[2]->weight});
  EXPECT_TRUE(torch::equal(grads[0], plain_grads[0]));
  EXPECT_TRUE(torch::equal(grads[1], plain_grads[1]));
}

/// Ends with a product, whose result is kept.
struct EndsInAProductImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x.sin().sin().sin().mm(weight); }
  Tensor weight = register_parameter("weight", torch::randn({64, 64}) / 8);
};
TORCH_MODULE(EndsInAProduct);

/// The loss saves nothing of its input, and the caller lets go of it.
TEST_F(FitKeeping, AnOutputThatAnOptionKeepsCountsWhileTheLossRuns) {
  for (const auto& how : {CheckpointOptions(refrain::Route::Function),
                          CheckpointOptions(refrain::EarlyStop::Off), CheckpointOptions()}) {
    std::vector<EndsInAProduct> layers;
    for (int i = 0; i < 3; ++i) layers.emplace_back();
    const auto x = torch::randn({512, 64}).requires_grad_();
    const auto loss = [](Tensor y) {
      y = y.log_softmax(-1);
      return y.repeat({8, 1}).sum();
    };
    const auto options = quick().checkpoint(how).loss(loss).output(refrain::StepOutput::Dropped);
    const Plan plan(refrain::profile(options, layers, x), {3, {{{0, 3}, false, {}, 1}}}, Bytes());
    auto chain =
        refrain::checkpoint(layers, plan, CheckpointOptions(how).keeps({policy::keep_matmuls()}));
    refrain::reset_peak();
    {
      auto loss_of_chain = loss(chain(x));
      loss_of_chain.backward();
    }
    EXPECT_LE(refrain::memory().peak, plan.predicted_peak() + Bytes(1024)) << to_string(how);
  }
}

TEST_F(FitKeeping, PoliciesInAnotherOrderAreRefused) {
  const auto layers = blocks();
  const std::vector<policy::OpPolicy> both = {policy::keep_matmuls(), policy::keep_attention()};
  const auto profile = dear_replays(refrain::profile(quick().keeps(both), layers, input()));
  const Plan plan = refrain::plan(profile, budget_between(profile, 0.6));
  const auto other = CheckpointOptions().keeps({both[1], both[0]});
  support::expect_says<refrain::PlanError>(
      {"option 1 of a plan was profiled as keep_matmuls(), and keep_attention() is given"},
      [&] { refrain::checkpoint(layers, plan, other)(input()); });
}

TEST_F(FitKeeping, TheProfileShowsWhatEachOptionCosts) {
  const auto profile = refrain::profile(quick(), blocks(), input());
  EXPECT_THAT(to_string(profile), testing::HasSubstr("keep_matmuls() "));
}

TEST_F(FitKeeping, APlanThatIsNotGivenWhatItKeepsIsRefused) {
  const auto layers = blocks();
  const auto profile = dear_replays(refrain::profile(quick(), layers, input()));
  const Plan plan = refrain::plan(profile, budget_between(profile, 0.6));
  support::expect_says<refrain::PlanError>(
      {"in option 1, of 0 that are given", "CheckpointOptions().keeps({...})"},
      [&] { refrain::checkpoint(layers, plan)(input()); });
}

TEST_F(FitKeeping, UnknownOperatorsAreRefusedAtOnce) {
  EXPECT_THROW(ProfileOptions().keeps({policy::keep_ops({"adm"})}), refrain::OptionError);
  EXPECT_THROW(CheckpointOptions().keeps({policy::keep_ops({"adm"})}), refrain::OptionError);
}

}  // namespace
