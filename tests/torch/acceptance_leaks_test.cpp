// SPDX-License-Identifier: BSD-3-Clause
// K6: many steps, some dropped, some interrupted, and not a byte more. A11, A12 and their siblings.
#include "support/custom_functions.hpp"
#include "support/live_bytes.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"

#include <functional>
#include <stdexcept>

namespace {

using support::growth_over;
using torch::Tensor;

class Leaks : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Leaks, support::kBothRoutes, support::route_name);

/// Every 3rd loss is dropped without backward, every 7th backward is interrupted half way.
std::function<void(int)> unsteady(const std::function<Tensor(Tensor)>& net) {
  return [net](int i) {
    auto x = torch::randn({16, 8}).requires_grad_();
    auto middle = net(x);
    if (i % 7 == 0) {
      middle.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
    }
    const auto loss = net(net(middle)).sum();
    if (i % 3 == 0) return;
    if (i % 7 == 0) {
      EXPECT_ANY_THROW(loss.backward());
    } else {
      loss.backward();
    }
  };
}

TEST_P(Leaks, A11_FiveHundredUnsteadyStepsStaySteady) {
  auto layer = quiet(support::Mlp(8, 0.2));
  EXPECT_EQ(growth_over(500, unsteady([&](Tensor t) { return layer(t); }), 21), 0);
}

TEST_P(Leaks, A11_NestedRegionsStaySteadyToo) {
  auto block = support::Mlp(8, 0.2);
  auto inner = quiet(block);
  auto outer = quiet([&](Tensor t) { return inner(inner(t).sin()).cos(); });
  EXPECT_EQ(growth_over(200, unsteady([&](Tensor t) { return outer(t); }), 21), 0);
}

TEST_P(Leaks, A11_ReplaysThatThrowLeaveNothing) {
  int calls = 0;
  auto region = quiet([&calls](Tensor t) {
    t = t.sin();
    if (++calls % 2 == 0) throw std::runtime_error("in the replay");
    return t.exp().cos();
  });
  const auto step = [&](int) {
    EXPECT_ANY_THROW(region(torch::randn({64}).requires_grad_()).sum().backward());
  };
  EXPECT_EQ(growth_over(100, step), 0);
}

TEST_P(Leaks, A11_ForwardsThatThrowLeaveNothing) {
  auto region = quiet([](Tensor t) -> Tensor {
    const auto kept = t.sin().exp();
    if (kept.defined()) throw std::runtime_error("in the forward");
    return kept;
  });
  const auto step = [&](int) { EXPECT_ANY_THROW(region(torch::randn({64}).requires_grad_())); };
  EXPECT_EQ(growth_over(100, step), 0);
}

template <class Function>
void expect_no_leak(const refrain::CheckpointOptions& options) {
  auto region =
      refrain::checkpoint([](Tensor t) { return Function::apply(t.sin())[0] * 1.0; }, options);
  const auto step = [&](int) { region(torch::randn({20'000}).requires_grad_()).sum().backward(); };
  EXPECT_EQ(growth_over(50, step), 0);
}

TEST_P(Leaks, A12_AFunctionThatSavesItsOutputsLastInTheRegion) {
  expect_no_leak<support::SavesInputThenOutputs>(options());
}

TEST_P(Leaks, A12_AFunctionThatSavesItsOutputsFirst) {
  expect_no_leak<support::SavesOutputsThenInput>(options());
}

TEST_P(Leaks, A12_AFunctionThatSavesOnlyItsOutputs) {
  expect_no_leak<support::SavesOnlyOutputs>(options());
}

TEST_P(Leaks, RetainedGraphsLetGoInTheEnd) {
  auto layer = quiet(support::Mlp(8));
  const auto step = [&](int i) {
    const auto loss = layer(torch::randn({16, 8}).requires_grad_()).sum();
    loss.backward({}, /*retain_graph=*/true);
    if (i % 2 == 0) loss.backward();
  };
  EXPECT_EQ(growth_over(50, step), 0);
}

TEST_P(Leaks, SecondDerivativesLetGoInTheEnd) {
  auto layer = quiet(support::Mlp(8));
  const auto step = [&](int i) {
    const auto x = torch::randn({16, 8}).requires_grad_();
    const auto g = torch::autograd::grad({layer(x).pow(2).sum()}, {x}, {}, true, true);
    if (i % 3 != 0) g[0].pow(2).sum().backward();
  };
  EXPECT_EQ(growth_over(50, step), 0);
}

TEST_P(Leaks, GradientsOfAPartOfTheGraphLetGoInTheEnd) {
  auto layer = quiet(support::Mlp(8));
  const auto step = [&](int) {
    const auto middle = layer(torch::randn({16, 8}).requires_grad_());
    torch::autograd::grad({layer(middle).sum()}, {middle});
  };
  EXPECT_EQ(growth_over(50, step), 0);
}

TEST_P(Leaks, ABackwardThatFailsInTheMiddleKeepsNothingRebuilt) {
  auto region = quiet([](Tensor t) {
    t = t.exp().sin().cos();
    t.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
    return t.tanh();
  });
  const auto x = torch::randn({1000}).requires_grad_();
  const auto loss = region(x).sum();
  const auto before = support::live_bytes();
  EXPECT_ANY_THROW(loss.backward());
  EXPECT_EQ(support::live_bytes(), before) << "the graph is still held, and only the graph";
}

}  // namespace
