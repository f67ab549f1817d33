// SPDX-License-Identifier: BSD-3-Clause
// K4: buffers move exactly once a step, and the replay reads what the first run read. A07.
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/checkpoint_sequential.hpp>

namespace {

using torch::Tensor;
namespace nn = torch::nn;

class Buffers : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Buffers, support::kBothRoutes, support::route_name);

TEST_P(Buffers, A07_BatchNormMovesOnce) {
  auto norm = nn::BatchNorm1d(nn::BatchNorm1dOptions(2).momentum(0.1));
  auto layer = quiet(norm);
  layer(torch::tensor({{1.0, 2.0}, {3.0, 6.0}}).requires_grad_()).pow(2).sum().backward();
  EXPECT_TRUE(torch::allclose(norm->running_mean, torch::tensor({0.2, 0.4})));
  EXPECT_TRUE(torch::allclose(norm->running_var, torch::tensor({0.9 + 0.2, 0.9 + 0.8})));
  EXPECT_EQ(norm->num_batches_tracked.item<int>(), 1);
}

/// Three steps, so that what a replay left behind would show in the next.
template <class Holder>
auto three_steps(Holder (*make)(), std::vector<std::int64_t> shape) {
  return [make, shape](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(make()));
    for (int i = 0; i < 3; ++i) step.backward(layer(step.leaf(torch::randn(shape))));
  };
}

TEST_P(Buffers, BatchNorm1d) {
  support::Twin(options()).of(three_steps(+[] { return nn::BatchNorm1d(6); }, {5, 6}));
}

TEST_P(Buffers, BatchNorm2d) {
  support::Twin(options()).of(three_steps(+[] { return nn::BatchNorm2d(3); }, {2, 3, 4, 4}));
}

TEST_P(Buffers, BatchNorm3d) {
  support::Twin(options()).of(three_steps(+[] { return nn::BatchNorm3d(2); }, {2, 2, 3, 3, 3}));
}

TEST_P(Buffers, InstanceNormWithTracking) {
  const auto make = +[] {
    return nn::InstanceNorm2d(nn::InstanceNorm2dOptions(3).affine(true).track_running_stats(true));
  };
  support::Twin(options()).of(three_steps(make, {2, 3, 4, 4}));
}

TEST_P(Buffers, CumulativeAveragingReadsTheCounterOfTheFirstRun) {
  const auto make =
      +[] { return nn::BatchNorm1d(nn::BatchNorm1dOptions(6).momentum(std::nullopt)); };
  support::Twin(options()).of(three_steps(make, {5, 6}));
}

TEST_P(Buffers, EvaluationReadsTheStatisticsAndLeavesThem) {
  const auto make = +[] {
    auto norm = nn::BatchNorm1d(6);
    norm->running_mean.uniform_();
    norm->running_var.uniform_(0.5, 1.5);
    norm->eval();
    return norm;
  };
  support::Twin(options()).of(three_steps(make, {5, 6}));
}

TEST_P(Buffers, ASequentialOfNormsKeepsEachItsOwn) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto norms = step.watch(
        nn::Sequential(nn::Linear(6, 6), nn::BatchNorm1d(6), nn::ReLU(), nn::BatchNorm1d(6)));
    auto layers = wrap(norms, refrain::policy::all());
    for (int i = 0; i < 3; ++i) step.backward(layers->forward(step.leaf(torch::randn({5, 6}))));
  });
}

/// Writes a buffer in forward and reads it in the same breath.
struct RunningMaxImpl : nn::Module {
  RunningMaxImpl() : seen(register_buffer("seen", torch::zeros({4}))) {}
  Tensor forward(Tensor x) {
    {
      const torch::NoGradGuard no_grad;
      seen.copy_(torch::maximum(seen, std::get<0>(x.abs().max(0))));
    }
    return x.sin() / (seen.clone() + 1);
  }
  Tensor seen;
};
TORCH_MODULE(RunningMax);

TEST_P(Buffers, ABufferOfTheUsersOwn) {
  support::Twin(options()).of(three_steps(+[] { return RunningMax(); }, {5, 4}));
}

TEST_P(Buffers, TwoRegionsOfOneModuleMoveItTwice) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto norm = step.watch(nn::BatchNorm1d(6));
    auto layer = wrap(norm);
    step.backward(layer(layer(step.leaf(torch::randn({5, 6})))));
    EXPECT_EQ(norm->num_batches_tracked.template item<int>(), 2);
  });
}

TEST_P(Buffers, TheBufferKeepsItsIdentityItsStorageAndItsAliases) {
  auto norm = nn::BatchNorm1d(6);
  const auto alias = norm->running_mean;
  const auto view = norm->running_mean.slice(0, 0, 3);
  const auto* data = norm->running_mean.data_ptr();
  auto layer = quiet(norm);
  layer(torch::randn({5, 6}).requires_grad_()).sum().backward();
  EXPECT_TRUE(norm->running_mean.is_same(alias));
  EXPECT_EQ(norm->running_mean.data_ptr(), data);
  EXPECT_TRUE(torch::equal(view, norm->running_mean.slice(0, 0, 3)));
  EXPECT_GT(view.abs().sum().item<float>(), 0);
}

}  // namespace
