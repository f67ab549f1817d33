// SPDX-License-Identifier: BSD-3-Clause
#include "support/programs.hpp"
#include "support/seeded.hpp"
#include "support/stacks.hpp"
#include "support/twin.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/fit.hpp>
#include <refrain/memory.hpp>
#include <refrain/plan.hpp>
#include <refrain/profiler.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace F = torch::nn::functional;
namespace policy = refrain::policy;
using refrain::Bytes;
using refrain::Plan;
using refrain::Profile;
using refrain::ProfileOptions;

/// A model, its data, and a step of it as a user would write it.
struct Trained {
  std::string name;
  Profile profile;
  /// The peak of a step with the chain cut by a policy, all that is resident included.
  std::function<Bytes(const refrain::policy::AnyPolicy&)> peak_with;
};

void drop_gradients(const std::vector<torch::Tensor>& parameters) {
  for (const torch::Tensor& parameter : parameters) parameter.mutable_grad() = torch::Tensor();
}

/// So that plans use them: layers as small as these are as quickly replayed as a whole.
Profile with_quick_options(Profile profile) {
  for (refrain::StageCost& stage : profile.chain.stages) {
    const double replay = stage.plain.forward - stage.tail;
    for (refrain::GradRun& option : stage.options) {
      option.forward = stage.plain.forward;
      option.backward = stage.plain.backward + replay / 8;
    }
  }
  return profile;
}

template <class Layers, class Loss>
Trained trained(std::string name, const Layers& layers, const torch::Tensor& x, const Loss& loss,
                const std::vector<torch::Tensor>& parameters,
                const refrain::CheckpointOptions& options = {}) {
  const auto peak_with = [=](const refrain::policy::AnyPolicy& policy) {
    auto chain = refrain::checkpoint(layers, policy, options);
    for (int step = 0; step < 2; ++step) {
      drop_gradients(parameters);
      refrain::reset_peak();
      auto output = chain(x);
      loss(output).backward();
    }
    const Bytes peak = refrain::memory().peak;
    drop_gradients(parameters);
    return peak;
  };
  peak_with(refrain::policy::none());
  return {std::move(name),
          with_quick_options(refrain::profile(
              ProfileOptions().loss(loss).checkpoint(options).keeps(options.keeps()), layers, x)),
          peak_with};
}

Trained trained_gpt_with(const refrain::CheckpointOptions& options) {
  const auto layers = support::gpt(/*blocks=*/6, /*width=*/64, /*tokens=*/200, /*drop=*/0.1);
  const auto ids = torch::randint(200, {4, 32});
  const auto targets = torch::randint(200, {4 * 32});
  return trained(
      "GPT", layers, ids,
      [targets](const torch::Tensor& y) { return F::cross_entropy(y.flatten(0, 1), targets); },
      layers->parameters(), options);
}
Trained trained_gpt() { return trained_gpt_with({}); }
Trained trained_gpt_keeping() {
  return trained_gpt_with(
      refrain::CheckpointOptions().keeps({policy::keep_matmuls(), policy::keep_ops({"addmm"})}));
}

Trained trained_resnet_with(const refrain::CheckpointOptions& options) {
  const auto layers = support::resnet(/*channels=*/8, /*classes=*/10);
  const auto classes = torch::randint(10, {4});
  return trained(
      "ResNet", layers, torch::randn({4, 3, 32, 32}),
      [classes](const torch::Tensor& y) { return F::cross_entropy(y, classes); },
      layers->parameters(), options);
}
Trained trained_resnet() { return trained_resnet_with({}); }
Trained trained_resnet_keeping() {
  return trained_resnet_with(refrain::CheckpointOptions().keeps({policy::keep_matmuls()}));
}

Trained trained_lstm() {
  std::vector<support::LstmLayer> layers;
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < 5; ++i) {
    layers.emplace_back(24, 24);
    for (const torch::Tensor& parameter : layers.back()->parameters())
      parameters.push_back(parameter);
  }
  const auto target = torch::randn({4, 20, 24});
  return trained(
      "LSTM", layers, torch::randn({4, 20, 24}),
      [target](const torch::Tensor& y) { return F::mse_loss(y, target); }, parameters);
}

Trained trained_tied_gpt() {
  auto layers = support::gpt(/*blocks=*/4, /*width=*/64, /*tokens=*/200);
  const auto* const table = layers->ptr(0)->as<torch::nn::Embedding>();
  layers->ptr(layers->size() - 1)->as<torch::nn::Linear>()->weight = table->weight;
  const auto ids = torch::randint(200, {4, 32});
  const auto targets = torch::randint(200, {4 * 32});
  return trained(
      "tied GPT", layers, ids,
      [targets](const torch::Tensor& y) { return F::cross_entropy(y.flatten(0, 1), targets); },
      layers->parameters());
}

/// One layer, in all places.
Trained trained_shared() {
  const torch::nn::Linear layer(64, 64);
  const std::vector<torch::nn::Linear> layers(5, layer);
  return trained(
      "shared layer", layers, torch::randn({64, 64}).requires_grad_(),
      [](const torch::Tensor& y) { return y.pow(2).mean(); }, layer->parameters());
}

/// Begins with dropout, which does not save its input.
struct DropoutFirstImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return down(torch::gelu(up(torch::dropout(x, 0.1, is_training()))));
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(32, 128));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(128, 32));
};
TORCH_MODULE(DropoutFirst);

Trained trained_dropout_first_with(const refrain::CheckpointOptions& options) {
  torch::nn::Sequential layers;
  for (int i = 0; i < 6; ++i) layers->push_back(DropoutFirst());
  return trained(
      "dropout first", layers, torch::randn({128, 32}),
      [](const torch::Tensor& y) { return y.pow(2).mean(); }, layers->parameters(), options);
}
Trained trained_dropout_first() { return trained_dropout_first_with({}); }
/// The last product's result is the layer's, and is kept.
Trained trained_dropout_first_keeping() {
  return trained_dropout_first_with(
      refrain::CheckpointOptions(refrain::EarlyStop::Off).keeps({policy::keep_matmuls()}));
}
Trained trained_dropout_first_keeping_on_the_function_route() {
  return trained_dropout_first_with(
      refrain::CheckpointOptions(refrain::Route::Function).keeps({policy::keep_matmuls()}));
}

/// Writes a buffer that is larger than what it keeps.
struct WrittenCodebookImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      codebook.mul_(0.99).add_(0.01);
    }
    return torch::tanh(linear(x)) + codebook[0];
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(32, 32));
  torch::Tensor codebook = register_buffer("codebook", torch::zeros({200, 32}));
};
TORCH_MODULE(WrittenCodebook);

Trained trained_codebooks() {
  torch::nn::Sequential layers;
  for (int i = 0; i < 8; ++i) layers->push_back(WrittenCodebook());
  return trained(
      "codebooks", layers, torch::randn({256, 32}),
      [](const torch::Tensor& y) { return y.pow(2).mean(); }, layers->parameters());
}

class Budget : public support::Seeded, public testing::WithParamInterface<Trained (*)()> {};

class KeptBudget : public support::Seeded, public testing::WithParamInterface<Trained (*)()> {};

/// Where the model is an upper bound.
TEST_P(KeptBudget, IsNeverPassedAndLetsAllBlocksBeReplayed) {
  const Trained model = GetParam()();
  const Profile& profile = model.profile;
  const Bytes least = refrain::least_budget(profile);
  const Bytes most = profile.resident + profile.slack + Bytes(refrain::plain_cost(profile).peak);
  EXPECT_GT(profile.chain.size(), 3);
  bool any_option = false;
  constexpr int kBudgets = 12;
  for (int i = 0; i < kBudgets; ++i) {
    const Bytes budget = least + (most - least) * i / (kBudgets - 1);
    const Plan plan = refrain::plan(profile, budget);
    EXPECT_LE(plan.predicted_peak(), budget);
    EXPECT_LE(model.peak_with(plan), budget) << model.name << " " << to_string(plan.layers());
    for (const auto& node : plan.stages()) any_option = any_option || node.option != 0;
  }
  EXPECT_EQ(any_option, !profile.keeps.empty());
  EXPECT_LE(static_cast<double>(least.count()),
            1.1 * static_cast<double>(model.peak_with(refrain::policy::all()).count()))
      << model.name;
}

TEST_P(Budget, TheMeasuredPeakIsThePredictedOne) {
  const Trained model = GetParam()();
  const Profile& profile = model.profile;
  const Bytes most = profile.resident + profile.slack + Bytes(refrain::plain_cost(profile).peak);
  const Bytes least = refrain::least_budget(profile);
  ASSERT_LT(least, most);
  Bytes last_peak;
  double last_seconds = std::numeric_limits<double>::infinity();
  bool any_option = false;
  constexpr int kBudgets = 20;
  for (int i = 0; i < kBudgets; ++i) {
    const Bytes budget = least + (most - least) * i / (kBudgets - 1);
    const Plan plan = refrain::plan(profile, budget);
    const Bytes measured = model.peak_with(plan);
    SCOPED_TRACE(fmt::format("{}, {}: {}", model.name, budget, plan.layers()));
    EXPECT_LE(measured, budget);
    const double allowed = 1024 + 0.001 * static_cast<double>(measured.count());
    EXPECT_NEAR(static_cast<double>(plan.predicted_peak().count()),
                static_cast<double>(measured.count()), allowed);
    EXPECT_GE(plan.predicted_peak(), last_peak);
    EXPECT_LE(plan.predicted_seconds(), last_seconds);
    for (const auto& node : plan.stages()) any_option = any_option || node.option != 0;
    last_peak = plan.predicted_peak();
    last_seconds = plan.predicted_seconds();
  }
  EXPECT_EQ(last_seconds, refrain::plain_cost(profile).seconds);
  EXPECT_EQ(any_option, !profile.keeps.empty());
}

using StageFunction = std::function<torch::Tensor(torch::Tensor)>;
enum class LastOperator { SavesItsResult, SavesItsInputs };

/// Four unlike stages, tanh(tanh(x a) b), or without the last tanh.
Trained trained_four(LastOperator last, const refrain::CheckpointOptions& options) {
  const std::vector<std::int64_t> widths = {4, 12, 8, 16, 4};
  const std::vector<std::int64_t> hidden = {24, 10, 36, 20};
  std::vector<StageFunction> layers;
  std::vector<torch::Tensor> parameters;
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const auto a = torch::randn({widths[i], hidden[i]}).requires_grad_();
    const auto b = torch::randn({hidden[i], widths[i + 1]}).requires_grad_();
    parameters.insert(parameters.end(), {a, b});
    layers.emplace_back([a, b, last](const torch::Tensor& x) {
      const auto y = torch::tanh(x.mm(a)).mm(b);
      return last == LastOperator::SavesItsResult ? torch::tanh(y) : y;
    });
  }
  const auto target = torch::randn({1000, 4});
  return trained(
      "four stages", layers, torch::randn({1000, 4}).requires_grad_(),
      [target](const torch::Tensor& y) { return F::mse_loss(y, target); }, parameters, options);
}

TEST(ExecutedPlans, All90OfFourStagesPeakWhereTheSimulationSays) {
  for (const auto last : {LastOperator::SavesItsResult, LastOperator::SavesItsInputs}) {
    const Trained model = trained_four(last, {});
    const auto plans = support::Programs(model.profile.chain).all();
    ASSERT_EQ(plans.size(), 90U);
    for (const auto& cut : plans) {
      const Plan plan(model.profile, cut, Bytes());
      EXPECT_NEAR(static_cast<double>(plan.predicted_peak().count()),
                  static_cast<double>(model.peak_with(plan).count()), 64)
          << to_string(cut);
    }
  }
}

TEST(ExecutedPlans, WhatAnOptionKeepsOfItsResultStaysWhileOthersReadIt) {
  for (const auto make :
       {&trained_dropout_first_keeping, &trained_dropout_first_keeping_on_the_function_route}) {
    const Trained model = make();
    std::vector<refrain::SegmentNode> nodes;
    for (std::int64_t i = 0; i < model.profile.chain.size(); ++i)
      nodes.push_back({{i, i + 1}, false, {}, 1 - i % 2});
    const Plan plan(model.profile, {model.profile.chain.size(), nodes}, Bytes());
    EXPECT_LE(model.peak_with(plan), plan.predicted_peak() + Bytes(256)) << plan.layers().size();
  }
}

Trained trained_modules(const torch::nn::Sequential& layers, const torch::Tensor& x) {
  return trained(
      "modules", layers, x, [](const torch::Tensor& y) { return y.square().mean(); },
      layers->parameters());
}

/// The measured peak is not above the predicted one, or is that one.
void expect_kept(const Trained& model, const refrain::Segmentation& cut, bool exactly) {
  const Plan plan(model.profile, cut, Bytes());
  const Bytes measured = model.peak_with(plan);
  EXPECT_LE(measured, plan.predicted_peak() + Bytes(1024)) << to_string(cut);
  if (exactly) EXPECT_GE(measured + Bytes(1024), plan.predicted_peak()) << to_string(cut);
}

// Dropout does not save what it is given, and the view before it saves nothing: ReLU does.
TEST(ExecutedPlans, WhatALayerSavesStaysThroughViewsOfIt) {
  namespace nn = torch::nn;
  for (const bool bends : {true, false}) {
    const auto bend = bends ? nn::AnyModule(nn::ReLU()) : nn::AnyModule(nn::Tanh());
    nn::Sequential layers;
    layers->push_back(nn::Linear(64, 1024));
    layers->push_back(bend);
    layers->push_back(nn::Flatten());
    layers->push_back(nn::Dropout(0.3));
    layers->push_back(nn::Linear(1024, 8));
    const Trained model = trained_modules(layers, torch::randn({256, 64}));
    const auto size = model.profile.chain.size();
    for (const auto& nodes : std::vector<std::vector<refrain::SegmentNode>>{
             {{{0, size}, false}},
             {{{0, 2}, true}, {{2, size}, false}},
             {{{0, 1}, false}, {{1, size}, true}},
             {{{0, size}, true, {{{0, 2}, true}, {{2, size}, false}}}}}) {
      expect_kept(model, {size, nodes}, /*exactly=*/!nodes[0].replayed);
    }
  }
}

TEST(ExecutedPlans, CountTheBuffersThatNestedRegionsKeepTwice) {
  namespace nn = torch::nn;
  const nn::Sequential layers(nn::Linear(8, 4096), nn::BatchNorm1d(4096), nn::Softmax(1),
                              nn::Sigmoid(), nn::Dropout(0.1));
  const Trained model = trained_modules(layers, torch::randn({16, 8}));
  ASSERT_EQ(model.profile.chain.size(), 5);
  using Nodes = std::vector<refrain::SegmentNode>;
  for (const Nodes& nodes :
       {Nodes{{{0, 5}, true}}, Nodes{{{0, 2}, true}, {{2, 5}, false}},
        Nodes{{{0, 5}, true, {{{0, 2}, true}, {{2, 5}, false}}}},
        Nodes{{{0, 5}, true, {{{0, 1}, true}, {{1, 2}, true}, {{2, 5}, false}}}},
        Nodes{{{0, 5}, true, {{{0, 3}, true, {{{0, 2}, true}, {{2, 3}, false}}}, {{3, 5}, false}}}},
        Nodes{{{0, 4}, true, {{{0, 2}, true}, {{2, 4}, true}}}, {{4, 5}, false}}}) {
    const bool nested_twice = !nodes[0].inside.empty() && !nodes[0].inside[0].inside.empty();
    expect_kept(model, {5, nodes}, /*exactly=*/!nested_twice);
  }
}

std::string kept_name(const testing::TestParamInfo<Trained (*)()>& model) {
  return std::vector<std::string>{"TiedGpt",
                                  "SharedLayer",
                                  "DropoutFirst",
                                  "DropoutFirstKeeping",
                                  "DropoutFirstKeepingFunction",
                                  "Codebooks"}[model.index];
}
INSTANTIATE_TEST_SUITE_P(Models, KeptBudget,
                         testing::Values(&trained_tied_gpt, &trained_shared, &trained_dropout_first,
                                         &trained_dropout_first_keeping,
                                         &trained_dropout_first_keeping_on_the_function_route,
                                         &trained_codebooks),
                         kept_name);

std::string model_name(const testing::TestParamInfo<Trained (*)()>& model) {
  return std::vector<std::string>{"Gpt", "GptKeeping", "ResNet", "ResNetKeeping",
                                  "Lstm"}[model.index];
}
INSTANTIATE_TEST_SUITE_P(Models, Budget,
                         testing::Values(&trained_gpt, &trained_gpt_keeping, &trained_resnet,
                                         &trained_resnet_keeping, &trained_lstm),
                         model_name);

}  // namespace
