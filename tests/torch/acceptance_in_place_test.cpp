// SPDX-License-Identifier: BSD-3-Clause
// K8: in-place operations, views and aliases inside regions. A15 and its siblings.
#include "support/routes.hpp"
#include "support/twin.hpp"

namespace {

using torch::Tensor;

class InPlace : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, InPlace, support::kBothRoutes, support::route_name);

/// (t + p), then `change`, on an input that needs grad and a captured scalar that does.
template <class Change>
auto shifted(Change change) {
  return [change](auto wrap, support::Step& step) {
    const auto p = step.leaf(torch::ones({}));
    const auto x = step.leaf(torch::zeros({1, 5}));
    const auto y = wrap([p, change](Tensor t) { return change(t + p); })(x);
    y.sum().backward();
    step.note("y", y);
    EXPECT_EQ(p.grad().template item<float>(), 5);
  };
}

TEST_P(InPlace, A15_AReturnedViewChangedInPlaceKeepsItsGradients) {
  support::Twin(options()).of(shifted([](Tensor t) { return t.slice(1, 0, 5).relu_(); }));
}

TEST_P(InPlace, A15_SqueezeInPlace) {
  support::Twin(options()).of(shifted([](Tensor t) { return t.squeeze_(); }));
}

TEST_P(InPlace, A15_PermuteThenInPlace) {
  support::Twin(options()).of(shifted([](Tensor t) { return t.permute({1, 0}).relu_(); }));
}

TEST_P(InPlace, A15_TransposeInPlace) {
  support::Twin(options()).of(shifted([](Tensor t) { return t.transpose_(0, 1); }));
}

TEST_P(InPlace, AnInPlaceChainInside) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) { return t.mul(2).sin_().add_(1).sigmoid_(); });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST_P(InPlace, AWriteIntoAViewOfAnIntermediate) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) {
      auto y = t.clone();
      y.select(0, 1).mul_(3);
      y.narrow(0, 2, 2).copy_(t.narrow(0, 0, 2).exp());
      return y.sin();
    });
    step.backward(region(step.leaf(torch::randn({4, 3}))));
  });
}

TEST_P(InPlace, AResultChangedAfterTheRegion) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto y = wrap([](Tensor t) { return t.sin() * 2; })(step.leaf(torch::randn({4})));
    y.add_(1);
    step.backward(y.exp());
  });
}

TEST_P(InPlace, AViewOfTheInputComesOut) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4, 3}));
    const auto y = wrap([](Tensor t) { return t.sin().t().slice(0, 1, 3); })(x);
    step.backward(y);
  });
}

TEST_P(InPlace, AViewIsTheInput) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto base = step.leaf(torch::randn({6, 4}));
    auto region = wrap([](Tensor t) { return (t * t.t()).exp(); });
    step.backward(region(base.slice(0, 1, 5)), region(base.slice(0, 0, 4).t()));
  });
}

TEST_P(InPlace, ATensorAndItsTransposeComeBackEachWithItsOwnStrides) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor a) { return a.exp().matmul(a.exp().t()).matmul(a.t()); });
    step.backward(region(step.leaf(torch::randn({8, 8}))));
  });
}

TEST_P(InPlace, AnExpandedTensorComesBackExpanded) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor a) {
      const auto wide = a.sin().expand({5, 4});
      return wide * wide.cos() + a;
    });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST_P(InPlace, ANestedRegionsResultIsChanged) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto inner = wrap([](Tensor t) { return t.sin().exp().cos(); });
    auto outer = wrap([=](Tensor t) mutable { return inner(t.tanh()).mul_(2).sin().mul_(3); });
    for (int i = 0; i < 20; ++i) step.backward(outer(step.leaf(torch::randn({4}))));
  });
}

TEST_P(InPlace, AnIntermediateIsChangedAfterAGradientThroughIt) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) {
      const auto own = t.detach().requires_grad_();
      const auto y = own.exp();  // saves its result
      const auto slope = torch::autograd::grad({y.sum()}, {own})[0];
      const torch::NoGradGuard no_grad;
      y.mul_(3);
      const torch::AutoGradMode grad(true);
      return (t * y.detach()).sin() * slope;
    });
    for (int i = 0; i < 20; ++i) step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST(InPlaceHooks, AnInputWrittenInPlaceInsideIsSaidOrRight) {
  // The first run moves its own input on; a replay would start from the moved values.
  const auto x = torch::randn({4}).requires_grad_();
  const auto moved = x * 1;
  const auto start = moved.detach().clone();
  auto region = refrain::checkpoint([](Tensor t) { return t.mul_(2).sin().exp(); });
  try {
    region(moved).sum().backward();
    const auto twice = start * 2;
    EXPECT_TRUE(torch::allclose(x.grad(), twice.sin().exp() * twice.cos() * 2));
  } catch (const refrain::Error& error) {
    EXPECT_NE(std::string(error.what()).find("changed"), std::string::npos) << error.what();
  }
}

}  // namespace
