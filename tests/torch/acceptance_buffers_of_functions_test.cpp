// SPDX-License-Identifier: BSD-3-Clause
// K4: buffers that no wrapped module registers: named by state(), made in forward, or rebuilt.
#include "support/messages.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

namespace {

using torch::Tensor;
namespace nn = torch::nn;

class StateOfFunctions : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, StateOfFunctions, support::kBothRoutes, support::route_name);

/// Counts its calls in a tensor that the first of them makes.
struct LateCounterImpl : nn::Module {
  Tensor forward(Tensor x) {
    if (!calls.defined()) calls = register_buffer("calls", torch::zeros({}));
    {
      const torch::NoGradGuard no_grad;
      calls += 1;
    }
    return (x * calls.clone()).sin();
  }
  Tensor calls;
};
TORCH_MODULE(LateCounter);

TEST_P(StateOfFunctions, ABufferFirstMadeInForwardMovesOnce) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto counter = step.watch(LateCounter());
    auto layer = wrap(counter);
    for (int i = 0; i < 3; ++i) step.backward(layer(step.leaf(torch::randn({4}))));
    EXPECT_EQ(counter->calls.template item<float>(), 3);
  });
}

/// Makes its mask when it first sees a length.
struct LateMaskImpl : nn::Module {
  Tensor forward(Tensor x) {
    if (!mask.defined()) mask = register_buffer("mask", torch::ones({x.size(0), x.size(0)}).tril());
    return (x.unsqueeze(1) * mask).exp().sum(0);
  }
  Tensor mask;
};
TORCH_MODULE(LateMask);

TEST_P(StateOfFunctions, AMaskFirstMadeInForwardIsReadAgain) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(LateMask()));
    for (int i = 0; i < 2; ++i) step.backward(layer(step.leaf(torch::randn({4}))));
  });
}

TEST_P(StateOfFunctions, NamedTensorsOfALambdaMoveOnce) {
  auto seen = torch::zeros({4});
  const auto body = [seen](Tensor t) {
    const torch::Tensor scaled = t.sin() / (seen.clone() + 1);
    const torch::NoGradGuard no_grad;
    Tensor(seen).add_(t.abs());
    return scaled;
  };
  const auto x = torch::randn({4}).requires_grad_();
  auto region = refrain::checkpoint(body, options().state({seen}));
  for (int i = 0; i < 3; ++i) {
    const auto at_entry = seen.clone();
    x.mutable_grad().reset();
    region(x).sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), x.cos() / (at_entry + 1))) << "step " << i;
    EXPECT_TRUE(torch::allclose(seen, x.detach().abs() * double(i + 1))) << "step " << i;
  }
}

TEST_P(StateOfFunctions, ALambdaThatNamesItsBatchNormsBuffersMovesThemOnce) {
  support::Twin().of([&](auto, support::Step& step) {
    auto norm = step.watch(nn::BatchNorm1d(6));
    const auto body = [&](Tensor t) { return norm(t).sin(); };
    const auto x = step.leaf(torch::randn({5, 6}));
    auto region = refrain::checkpoint(body, options().state(norm->buffers()));
    step.backward(region(x));
    EXPECT_EQ(norm->num_batches_tracked.template item<int>(), 1);
  });
}

TEST_P(StateOfFunctions, ALambdaThatCapturesABatchNormByReferenceIsNeverSilentlyWrong) {
  // A C++ lambda does not show what it captures: either its buffers move once, or backward says
  // which tensor moved and how to name it.
  auto norm = nn::BatchNorm1d(nn::BatchNorm1dOptions(2).momentum(0.1));
  auto region = quiet([&norm](Tensor t) { return norm(t); });
  const auto y = region(torch::tensor({{1.0, 2.0}, {3.0, 6.0}}).requires_grad_());
  try {
    y.pow(2).sum().backward();
  } catch (const refrain::Error& error) {
    EXPECT_NE(std::string(error.what()).find("state("), std::string::npos) << error.what();
  }
  EXPECT_TRUE(torch::allclose(norm->running_mean, torch::tensor({0.2, 0.4})));
  EXPECT_EQ(norm->num_batches_tracked.item<int>(), 1);
}

TEST_P(StateOfFunctions, AFailedReplayLeavesTheBuffersAsTheFirstRunDid) {
  bool fail = false;
  auto norm = nn::BatchNorm1d(6);
  const auto body = [&](Tensor t) {
    t = norm(t).sin();
    if (fail) throw std::runtime_error("on purpose");
    return t.exp();
  };
  auto region = refrain::checkpoint(body, options().state(norm->buffers()));
  const auto y = region(torch::randn({5, 6}).requires_grad_());
  const auto mean = norm->running_mean.clone();
  fail = true;
  EXPECT_ANY_THROW(y.sum().backward());
  EXPECT_TRUE(torch::equal(norm->running_mean, mean));
  EXPECT_EQ(norm->num_batches_tracked.item<int>(), 1);
}

}  // namespace
