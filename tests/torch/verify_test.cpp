// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/seeded.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/verify.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

torch::nn::Sequential normed_stack() {
  torch::nn::Sequential layers;
  for (int i = 0; i < 4; ++i) {
    layers->push_back(torch::nn::Linear(8, 8));
    layers->push_back(torch::nn::BatchNorm1d(8));
    layers->push_back(torch::nn::GELU());
    layers->push_back(torch::nn::Dropout(0.3));
  }
  return layers;
}

torch::Tensor an_input() { return torch::randn({16, 8}, torch::requires_grad()); }

class Verify : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(11); }
};

TEST_F(Verify, FindsAChainEqualAndCountsWhatItCompared) {
  auto stack = refrain::checkpoint(normed_stack(), refrain::policy::every(4));
  const auto report = refrain::verify(stack, an_input());
  EXPECT_TRUE(report.ok()) << fmt::format("{}", report);
  EXPECT_EQ(report.outputs, 1U);
  EXPECT_EQ(report.input_gradients, 1U);
  EXPECT_EQ(report.parameter_gradients, 16U);
  EXPECT_EQ(report.buffers, 12U);
  EXPECT_EQ(report.checkpointed.replays, 3U);
  ASSERT_TRUE(report.plain.saved && report.checkpointed.saved);
  EXPECT_LT(*report.checkpointed.saved, *report.plain.saved);
}

TEST_F(Verify, WeighsTheStepAndNotItsOwnCopies) {
  // Kept: the argument, which is there before, and the result of 16 * 8 floats.
  const auto report = refrain::verify(
      refrain::checkpoint([](torch::Tensor t) { return t.sin().cos(); }), an_input());
  ASSERT_TRUE(report.plain.saved && report.checkpointed.saved);
  EXPECT_EQ(report.checkpointed.saved->count(), 16 * 8 * 4);
  EXPECT_EQ(report.plain.saved->count(), 2 * 16 * 8 * 4);
}

TEST_F(Verify, PutsEverythingBack) {
  auto layers = normed_stack();
  auto stack = refrain::checkpoint(layers, refrain::policy::every(4));
  const auto x = an_input();
  stack(x).sum().backward();
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> buffers;
  for (const auto& parameter : layers->parameters()) gradients.push_back(parameter.grad().clone());
  for (const auto& buffer : layers->buffers()) buffers.push_back(buffer.clone());
  const auto input_gradient = x.grad().clone();
  const auto generator = at::globalContext().defaultGenerator(at::kCPU).get_state();

  EXPECT_TRUE(refrain::verify(stack, x).ok());

  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(torch::equal(layers->parameters()[i].grad(), gradients[i]));
  }
  for (std::size_t i = 0; i < buffers.size(); ++i)
    EXPECT_TRUE(torch::equal(layers->buffers()[i], buffers[i]));
  EXPECT_TRUE(torch::equal(x.grad(), input_gradient));
  EXPECT_TRUE(torch::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), generator));
}

TEST_F(Verify, PutsBackABatchNormThatAFunctionCaptured) {
  torch::nn::BatchNorm1d norm(8);
  auto quiet = refrain::checkpoint([&](torch::Tensor x) { return norm(x).sin(); });
  const auto report = refrain::verify(quiet, an_input());
  EXPECT_TRUE(report.ok()) << fmt::format("{}", report);
  EXPECT_EQ(report.buffers, 3U);
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 0);
  EXPECT_TRUE(torch::equal(norm->running_mean, torch::zeros({8})));
}

TEST_F(Verify, LeavesTheGraphOfACapturedTensorUsable) {
  const auto w = torch::randn({8, 8}, torch::requires_grad());
  const auto twice = w * w;
  auto quiet = refrain::checkpoint([&](torch::Tensor x) { return x.matmul(twice).sin(); });
  EXPECT_TRUE(refrain::verify(quiet, an_input()).ok());
  EXPECT_FALSE(w.grad().defined());
  twice.sum().backward();
  EXPECT_TRUE(torch::equal(w.grad(), 2 * w));
}

TEST_F(Verify, CatchesABodyWithAGeneratorOfItsOwn) {
  std::mt19937 own(3);
  auto noisy = refrain::checkpoint(
      [&](torch::Tensor x) { return (x * static_cast<double>(own() % 1000)).sin(); });
  const auto report = refrain::verify(noisy, an_input());
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(report.repeatable);
  EXPECT_NE(fmt::format("{}", report).find("draws numbers of its own"), std::string::npos);
}

TEST_F(Verify, CatchesACounterThatChangesThePath) {
  int calls = 0;
  auto fickle = refrain::checkpoint(
      [&](torch::Tensor x) { return calls++ % 2 == 0 ? x.sin().exp() : x.sigmoid(); });
  EXPECT_FALSE(refrain::verify(fickle, an_input()).ok());
}

TEST_F(Verify, CatchesAStaleCache) {
  torch::Tensor cache;
  const auto w = torch::randn({8, 8}, torch::requires_grad());
  auto caching = refrain::checkpoint([&](torch::Tensor x) {
    if (!cache.defined()) cache = x.matmul(w).sin();
    return (cache * x).cos();
  });
  const auto report = refrain::verify(caching, an_input());
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(report.checkpointed_error.empty());
}

TEST_F(Verify, NamesTheFirstTensorThatDiffersAndByHowMuch) {
  torch::nn::Linear linear(8, 8);
  int calls = 0;
  auto drifting =
      refrain::checkpoint([&](torch::Tensor x) { return linear(x * (1.0 + 0.5 * calls++)).sin(); });
  const auto report = refrain::verify(drifting, an_input());
  ASSERT_FALSE(report.differences.empty());
  EXPECT_EQ(report.differences.front().what, "output 0");
  EXPECT_NE(report.differences.front().how.find("of 128 elements differ, by at most"),
            std::string::npos)
      << report.differences.front().how;
}

TEST_F(Verify, ServesAWholeModelWithRegionsInside) {
  torch::nn::Sequential net(torch::nn::Linear(8, 8),
                            refrain::checkpoint(normed_stack(), refrain::policy::every(4)),
                            torch::nn::Linear(8, 2));
  const auto report = refrain::verify(refrain::VerifyOptions().seed(5), net, an_input());
  EXPECT_TRUE(report.ok()) << fmt::format("{}", report);
  EXPECT_EQ(report.checkpointed.replays, 3U);
}

TEST_F(Verify, SaysThatNothingWasForgottenWhereNoRegionRan) {
  torch::nn::Linear plain(8, 8);
  const auto report = refrain::verify(plain, an_input());
  EXPECT_TRUE(report.ok());
  EXPECT_NE(fmt::format("{}", report).find("nothing was forgotten"), std::string::npos);
}

TEST_F(Verify, AcceptsDifferencesWithinTheTolerance) {
  int calls = 0;
  auto drifting =
      refrain::checkpoint([&](torch::Tensor x) { return (x * (1.0 + 1e-6 * calls++)).sin(); });
  EXPECT_FALSE(refrain::verify(drifting, an_input()).ok());
  EXPECT_TRUE(refrain::verify(refrain::VerifyOptions().tolerance(1e-3), drifting, an_input()).ok());
}

TEST_F(Verify, ComparesSparseGradients) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  const auto report = refrain::verify(
      refrain::checkpoint([table](torch::Tensor i) mutable { return table(i).sin(); }),
      torch::tensor({1, 2, 3}));
  EXPECT_TRUE(report.ok()) << fmt::format("{}", report);
}

struct OwnNoiseImpl : torch::nn::Module {
  explicit OwnNoiseImpl(at::Generator source) : generator(std::move(source)) {}
  torch::Tensor forward(const torch::Tensor& x) { return (x * at::rand(x.sizes(), generator)).sin(); }
  at::Generator generator;
};
TORCH_MODULE(OwnNoise);

struct NoisyNetImpl : torch::nn::Module {
  explicit NoisyNetImpl(const at::Generator& source)
      : noise(register_module(
            "noise", refrain::checkpoint(OwnNoise(source),
                                         refrain::CheckpointOptions().generators({source})))) {}
  torch::Tensor forward(const torch::Tensor& x) { return head(noise(x)); }
  refrain::Checkpoint<OwnNoise> noise;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 4));
};
TORCH_MODULE(NoisyNet);

TEST_F(Verify, ServesAModelWhoseRegionsNameGenerators) {
  auto source = at::detail::createCPUGenerator(3);
  const auto x = torch::randn({2, 4}).requires_grad_();
  const auto before = source.get_state().clone();
  NoisyNet net(source);
  EXPECT_TRUE(refrain::verify(net, x).ok()) << to_string(refrain::verify(net, x));
  EXPECT_TRUE(torch::equal(source.get_state(), before));
  std::vector<refrain::Checkpoint<OwnNoise>> layers(3, net->noise);
  auto stack = refrain::checkpoint(layers, refrain::policy::none());
  EXPECT_TRUE(refrain::verify(stack, x).ok()) << to_string(refrain::verify(stack, x));
  EXPECT_TRUE(torch::equal(source.get_state(), before));
}

TEST_F(Verify, ServesARegionThatChangesItsArgument) {
  auto region = refrain::checkpoint([](torch::Tensor t) { return t.mul_(2).sin().exp(); });
  const auto x = torch::randn({4}).requires_grad_() * 1;
  const auto report = refrain::verify(region, x);
  EXPECT_TRUE(report.ok()) << to_string(report);
  EXPECT_EQ(report.input_gradients, 1);
}

TEST_F(Verify, RefusesAToleranceThatIsNone) {
  support::expect_says<refrain::OptionError>({"tolerance of -1"},
                                             [] { refrain::VerifyOptions().tolerance(-1); });
  support::expect_says<refrain::OptionError>(
      {"tolerance of nan"}, [] { refrain::VerifyOptions().tolerance(std::nan("")); });
}

}  // namespace
