// SPDX-License-Identifier: BSD-3-Clause
// K1: inputs without grad, frozen fronts, captured weights. A01, A02, A03 and their siblings.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

#include <tuple>

namespace {

using torch::Tensor;

class LostGradients : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, LostGradients, support::kBothRoutes, support::route_name);

TEST_P(LostGradients, A01_AdaptersBehindAFrozenEmbeddingLearn) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto embedding = step.watch(torch::nn::Embedding(10, 8));
    embedding->weight.requires_grad_(false);
    auto adapter = step.watch(support::Adapter(8));
    const auto ids = torch::randint(0, 10, {2, 5}, torch::kLong);
    auto block = wrap(adapter);
    const auto y = block(embedding(ids));
    EXPECT_TRUE(y.requires_grad());
    step.backward(y);
    EXPECT_FALSE(embedding->weight.grad().defined());
    EXPECT_FALSE(adapter->frozen->weight.grad().defined());
    EXPECT_TRUE(adapter->up->weight.grad().defined());
  });
}

TEST_P(LostGradients, A02_ACapturedLayerLearnsFromAnInputWithoutGrad) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto linear = step.watch(torch::nn::Linear(4, 3));
    const auto x = torch::randn({10, 4});
    const auto y = wrap([&](Tensor t) { return linear(t); })(x);
    EXPECT_TRUE(y.requires_grad());
    y.sum().backward();
    step.note("y", y);
  });
}

TEST_P(LostGradients, TheFirstLayerOfAModelLearns) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(support::Mlp(8)));
    step.backward(layer(torch::randn({3, 8})));
  });
}

TEST_P(LostGradients, NothingRequiresGradWhereNothingCanLearn) {
  auto linear = torch::nn::Linear(4, 3);
  for (auto& parameter : linear->parameters()) parameter.requires_grad_(false);
  auto layer = quiet(linear);
  EXPECT_FALSE(layer(torch::randn({2, 4})).requires_grad());
  EXPECT_TRUE(layer(torch::randn({2, 4}).requires_grad_()).requires_grad());
}

TEST_P(LostGradients, A03_MasksAndLengthsPassThrough) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto w = step.leaf(torch::randn({4}));
    const auto x = step.leaf(torch::randn({3, 4}));
    const auto mask = torch::rand({3, 4}) > 0.5;
    const auto len = torch::tensor({1, 2, 3}, torch::kLong);
    auto region = wrap([w](Tensor t, Tensor hidden, Tensor length) {
      return std::make_tuple(torch::masked_fill(t * w, hidden, 0.25), length + 1);
    });
    const auto [y, longer] = region(x, mask, len);
    EXPECT_EQ(longer.scalar_type(), torch::kLong);
    EXPECT_FALSE(longer.requires_grad());
    step.backward(y, longer);
  });
}

TEST_P(LostGradients, AnInputWithoutGradBesideOneWithItGetsNone) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto a = step.leaf(torch::randn({3}));
    const auto b = torch::randn({3});
    step.backward(wrap([](Tensor t, Tensor u) { return t * u + u.exp(); })(a, b));
    EXPECT_FALSE(b.grad().defined());
  });
}

TEST_P(LostGradients, AnInputReturnedAsItIsKeepsItsGradient) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({3}));
    const auto [same, y] = wrap([](Tensor t) { return std::make_tuple(t, t.sin()); })(x);
    step.backward(same, y);
  });
}

TEST_P(LostGradients, OneInputUsedForTwoArgumentsGetsTheSum) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({3}));
    step.backward(wrap([](Tensor a, Tensor b) { return a.sin() * b.exp(); })(x, x));
  });
}

TEST_P(LostGradients, AResultNobodyUsesCostsNobodyAGradient) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({3}));
    const auto [used, unused] = wrap([](Tensor t) { return std::make_tuple(t.sin(), t.exp()); })(x);
    step.backward(used);
  });
}

TEST_P(LostGradients, ACapturedResultOfTheGraphGetsItsGradient) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({3}));
    const auto w = step.leaf(torch::randn({3}));
    const auto made = w.exp();  // neither a leaf nor an argument
    step.backward(wrap([made](Tensor t) { return (t * made).sin(); })(x));
  });
}

TEST_P(LostGradients, ADetachedPartStaysDetached) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({3}));
    const auto [y, cut] =
        wrap([](Tensor t) { return std::make_tuple(t * t.detach(), t.sin().detach()); })(x);
    EXPECT_FALSE(cut.requires_grad());
    step.backward(y, cut);
  });
}

}  // namespace
