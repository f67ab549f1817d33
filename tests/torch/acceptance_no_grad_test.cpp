// SPDX-License-Identifier: BSD-3-Clause
// K15: without grad mode a region is a plain call; train and eval make no difference. A25.
#include "support/live_bytes.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/run_counter.hpp"
#include "support/twin.hpp"

#include <c10/util/Exception.h>

namespace {

using support::live_bytes;
using torch::Tensor;

class NoGrad : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, NoGrad, support::kBothRoutes, support::route_name);

/// Counts what LibTorch would have printed.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override { ++count; }
  int count = 0;
};

/// One call under `Guard`, next to the plain one: same result, one run, nothing kept or said.
template <class Guard>
void expect_plain_call(const refrain::CheckpointOptions& options) {
  auto block = support::Mlp(8);
  support::RunCounter ran;
  auto region = refrain::checkpoint(
      [&, ran](Tensor t) {
        ++ran;
        return block->forward(t);
      },
      options);
  const auto x = torch::randn({3, 8}).requires_grad_();
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const Guard no_grad;
  const auto expected = block(x);
  const auto base = live_bytes();
  auto y = region(x);
  EXPECT_TRUE(torch::equal(y, expected));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(y.grad_fn(), nullptr);
  y.reset();
  EXPECT_EQ(live_bytes(), base);
  EXPECT_EQ(ran.runs(), 1);
  EXPECT_EQ(warnings.count, 0);
}

TEST_P(NoGrad, A25_UnderNoGradGuardARegionIsAPlainCall) {
  expect_plain_call<torch::NoGradGuard>(options());
}

TEST_P(NoGrad, A25_UnderInferenceModeARegionIsAPlainCall) {
  expect_plain_call<c10::InferenceMode>(options());
}

TEST_P(NoGrad, A25_NothingIsKeptAlive) {
  auto captured = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = captured;
  const torch::NoGradGuard no_grad;
  const auto y = quiet([captured](Tensor t) { return t.sin() * *captured; })(torch::randn({3}));
  captured.reset();
  EXPECT_TRUE(watch.expired());
}

TEST_P(NoGrad, A25_EvaluationWithGradIsReplayed) {
  support::Twin twin(options());
  twin.of([](auto wrap, support::Step& step) {
    auto block = step.watch(support::Mlp(8, 0.5));
    block->eval();
    auto region = wrap([&](Tensor t) {
      ++step.ran;
      return block->forward(t).tanh();
    });
    step.backward(region(step.leaf(torch::randn({3, 8}))));
  });
  EXPECT_EQ(twin.runs(), 2);
}

TEST_P(NoGrad, A25_EvaluationKeepsAsLittleAsTraining) {
  auto kept_in = [&](bool training) {
    auto block = support::Mlp(64);
    block->train(training);
    const auto x = torch::randn({64, 64}).requires_grad_();
    const auto base = live_bytes();
    const auto y = quiet(block)(x);
    return live_bytes() - base;
  };
  EXPECT_EQ(kept_in(false), kept_in(true));
}

TEST_P(NoGrad, EvaluationAfterTrainingGivesThePlainResult) {
  auto block = support::Mlp(8, 0.5);
  auto layer = quiet(block);
  const auto x = torch::randn({3, 8});
  layer(x).sum().backward();
  layer->eval();
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(layer(x), block(x)));
}

TEST_P(NoGrad, AnIslandWithoutGradAroundARegionInsideARegion) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto inner = wrap([](Tensor t) { return t.sin().exp(); });
    auto outer = wrap([&](Tensor t) {
      Tensor scale;
      {
        const torch::NoGradGuard no_grad;
        scale = inner(t);
      }
      return (inner(t) * scale).tanh();
    });
    step.backward(outer(step.leaf(torch::randn({3}))));
  });
}

TEST_P(NoGrad, AForwardWithoutBackwardLeavesNothingBehind) {
  auto layer = quiet(support::Mlp(8));
  const auto x = torch::randn({3, 8});
  layer(x);
  const auto base = live_bytes();
  for (int i = 0; i < 20; ++i) layer(x);
  EXPECT_EQ(live_bytes(), base);
}

TEST_P(NoGrad, ATrainingStepSaysNothing) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  quiet(support::Mlp(8, 0.2))(torch::randn({3, 8})).sum().backward();
  EXPECT_EQ(warnings.count, 0);
}

}  // namespace
