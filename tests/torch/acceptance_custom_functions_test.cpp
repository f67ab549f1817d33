// SPDX-License-Identifier: BSD-3-Clause
// K10: custom autograd Functions inside regions. A12, A20 and their siblings.
#include "support/custom_functions.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

namespace {

using support::Twin;
using torch::Tensor;

class CustomFunctions : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, CustomFunctions, support::kBothRoutes, support::route_name);

TEST_P(CustomFunctions, A20_ABackwardMayReadItsSavedTensorsTwice) {
  support::RunCounter ran;
  const auto x = torch::full({1}, 3.0).requires_grad_();
  const auto y = quiet([ran](Tensor t) {
    ++ran;
    return support::SquareReading<2>::apply(t);
  })(x);
  y.backward();
  EXPECT_EQ(x.grad().item<float>(), 6);
  EXPECT_EQ(ran.runs(), 2);
}

TEST_P(CustomFunctions, A20_AnyNumberOfReadsIsATwin) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    auto never = wrap([](Tensor t) { return support::SquareReading<1>::apply(t.sin()).exp(); });
    auto often = wrap([](Tensor t) { return support::SquareReading<5>::apply(t.exp()).sin(); });
    step.backward(never(x), often(x));
  });
}

/// The Function alone, last, first, and in the middle of a region.
template <class Function>
auto everywhere() {
  return [](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({20'000}));
    const auto both = [](Tensor t) {
      auto out = Function::apply(t);
      return out[0] * 2 + out[1];
    };
    auto alone = wrap([](Tensor t) { return Function::apply(t); });
    auto last = wrap([both](Tensor t) { return both(t.sin()); });
    auto first = wrap([both](Tensor t) { return both(t).exp(); });
    auto middle = wrap([both](Tensor t) { return both(t.cos()).sin(); });
    const auto out = alone(x);
    step.backward(out[0], out[1], last(x), first(x), middle(x));
  };
}

TEST_P(CustomFunctions, A12_SavedInputThenOutputsAreFilled) {
  Twin(options()).of(everywhere<support::SavesInputThenOutputs>());
}

TEST_P(CustomFunctions, A12_SavedOutputsThenInputAreFilled) {
  Twin(options()).of(everywhere<support::SavesOutputsThenInput>());
}

TEST_P(CustomFunctions, A12_OnlyOutputsAreFilled) {
  Twin(options()).of(everywhere<support::SavesOnlyOutputs>());
}

/// Saves a tensor that needs no grad and hands it back beside the result.
struct MaskedFunction : torch::autograd::Function<MaskedFunction> {
  static support::variable_list forward(support::AutogradContext* ctx, const Tensor& x) {
    const auto mask = (x > 0).to(torch::kFloat);
    ctx->save_for_backward({mask});
    ctx->mark_non_differentiable({mask});
    ctx->saved_data["scale"] = 3.0;
    return {x * mask * 3.0, mask};
  }
  static support::variable_list backward(support::AutogradContext* ctx,
                                         support::variable_list grads) {
    return {grads[0] * ctx->get_saved_variables()[0] * ctx->saved_data["scale"].toDouble()};
  }
};

TEST_P(CustomFunctions, ANonDifferentiableOutputIsSaved) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) { return MaskedFunction::apply(t.sin()); });
    const auto out = region(step.leaf(torch::randn({6})));
    EXPECT_FALSE(out[1].requires_grad());
    step.backward(out[0], out[1]);
  });
}

/// Changes its input in place and says so.
struct InPlaceFunction : torch::autograd::Function<InPlaceFunction> {
  static Tensor forward(support::AutogradContext* ctx, Tensor x) {
    x.exp_();
    ctx->mark_dirty({x});
    ctx->save_for_backward({x});
    return x;
  }
  static support::variable_list backward(support::AutogradContext* ctx,
                                         support::variable_list grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

TEST_P(CustomFunctions, ADirtyInputIsAnOutput) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) { return InPlaceFunction::apply(t.sin()).cos(); });
    step.backward(region(step.leaf(torch::randn({6}))));
  });
}

/// A region inside a Function's forward, whose grads it takes itself.
struct FunctionAroundARegion : torch::autograd::Function<FunctionAroundARegion> {
  static Tensor forward(support::AutogradContext* ctx, const Tensor& x) {
    const torch::AutoGradMode grad(true);
    const auto inner = x.detach().requires_grad_();
    const auto y = refrain::checkpoint([](Tensor t) { return t.sin().exp(); })(inner);
    const auto g = torch::autograd::grad({y.sum()}, {inner})[0];
    ctx->save_for_backward({g});
    return y.detach();
  }
  static support::variable_list backward(support::AutogradContext* ctx,
                                         support::variable_list grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

TEST_P(CustomFunctions, ARegionInsideAFunctionsForward) {
  const auto x = torch::randn({4}).requires_grad_();
  FunctionAroundARegion::apply(x).sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), x.sin().exp() * x.cos()));
  const auto in_region = torch::autograd::grad(
      {quiet([](Tensor t) { return FunctionAroundARegion::apply(t); })(x).sum()}, {x})[0];
  EXPECT_TRUE(torch::equal(in_region, x.grad()));
}

}  // namespace
