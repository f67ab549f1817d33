// SPDX-License-Identifier: BSD-3-Clause
// K11: a parameter's hooks fire once per backward with the full sum. A22 and its siblings.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

#include <torch/csrc/autograd/function.h>

#include <vector>

namespace {

using torch::Tensor;

class HooksOnce : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, HooksOnce, support::kBothRoutes, support::route_name);

/// The gradients that the weight's hook saw.
template <class Net>
std::vector<Tensor> seen_by_hook(const Tensor& weight, Net&& net) {
  std::vector<Tensor> seen;
  const auto id = weight.register_hook([&](const Tensor& g) { seen.push_back(g.clone()); });
  net().sum().backward();
  weight.remove_hook(id);
  return seen;
}

TEST_P(HooksOnce, A22_UsedInsideAndOutsideARegion) {
  auto linear = torch::nn::Linear(4, 4);
  const auto x = torch::randn({3, 4});
  auto region = quiet([&](Tensor t) { return linear(t).sin(); });
  const auto plain = seen_by_hook(linear->weight, [&] { return linear(linear(x).sin()); });
  const auto quiet = seen_by_hook(linear->weight, [&] { return linear(region(x)); });
  ASSERT_EQ(quiet.size(), 1U);
  EXPECT_TRUE(torch::equal(quiet[0], plain.at(0)));
}

TEST_P(HooksOnce, A22_AWrappedModuleUsedInsideAndOutside) {
  auto linear = torch::nn::Linear(4, 4);
  const auto x = torch::randn({3, 4});
  auto layer = quiet(linear);
  const auto plain = seen_by_hook(linear->weight, [&] { return linear(linear(x).sin()); });
  const auto quiet = seen_by_hook(linear->weight, [&] { return linear(layer(x).sin()); });
  ASSERT_EQ(quiet.size(), 1U);
  EXPECT_TRUE(torch::allclose(quiet[0], plain.at(0)));
}

TEST_P(HooksOnce, ASharedModuleInTwoRegions) {
  auto linear = torch::nn::Linear(4, 4);
  const auto x = torch::randn({3, 4});
  auto layer = quiet(linear);
  const auto plain = seen_by_hook(linear->weight, [&] { return linear(linear(x).sin()); });
  const auto quiet = seen_by_hook(linear->weight, [&] { return layer(layer(x).sin()); });
  ASSERT_EQ(quiet.size(), 1U);
  EXPECT_TRUE(torch::allclose(quiet[0], plain.at(0)));
}

TEST_P(HooksOnce, AnAccumulatorsPostHookFiresOnceAStep) {
  // What a data-parallel reducer listens to.
  struct Count : torch::autograd::FunctionPostHook {
    explicit Count(int& count) : n(count) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& out,
                                              const torch::autograd::variable_list&) override {
      ++n;
      return out;
    }
    int& n;
  };
  int fired = 0;
  auto block = support::Mlp(4);
  const auto accumulator = torch::autograd::impl::grad_accumulator(block->fc1->weight);
  accumulator->add_post_hook(std::make_unique<Count>(fired));
  auto layer = quiet(block);
  for (int step = 1; step <= 3; ++step) {
    layer(layer(torch::randn({2, 4}))).sum().backward();
    EXPECT_EQ(fired, step);
  }
}

TEST_P(HooksOnce, AHookOnAnInputFiresOnce) {
  const auto x = torch::randn({4}).requires_grad_();
  const auto middle = x * 2;
  int fired = 0;
  middle.register_hook([&](const Tensor&) { ++fired; });
  auto region = quiet([](Tensor a, Tensor b) { return a.sin() * b.exp(); });
  region(middle, middle).sum().backward();
  EXPECT_EQ(fired, 1);
}

TEST_P(HooksOnce, AHookThatChangesAnInputsGradientIsHeard) {
  const auto x = torch::randn({4}).requires_grad_();
  x.register_hook([](const Tensor& g) { return g * 2; });
  quiet([](Tensor t) { return t.sin().exp(); })(x).sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), x.sin().exp() * x.cos() * 2));
}

TEST_P(HooksOnce, AHookSetInsideARegionFiresOnce) {
  int fired = 0;
  const auto x = torch::randn({4}).requires_grad_();
  auto region = quiet([&](Tensor t) {
    t = t.sin();
    t.register_hook([&](const Tensor&) { ++fired; });
    return t.exp();
  });
  region(x).sum().backward();
  EXPECT_EQ(fired, 1) << "the replay's tensors are not part of the graph";
}

TEST_P(HooksOnce, GradientsAccumulateOverMicroBatches) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(support::Mlp(4, 0.2)));
    for (int micro = 0; micro < 4; ++micro) step.backward(layer(torch::randn({2, 4})));
  });
}

}  // namespace
