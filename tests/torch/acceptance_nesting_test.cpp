// SPDX-License-Identifier: BSD-3-Clause
// K9: regions in regions, regions after regions, at any depth. A21 and its siblings.
#include "support/live_bytes.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

#include <functional>

namespace {

using support::Twin;
using torch::Tensor;

class Nesting : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Nesting, support::kBothRoutes, support::route_name);

TEST_P(Nesting, A21_NestedAndChainedRegionsComposeAtAnyDepth) {
  Twin twin(options());
  twin.of([](auto wrap, support::Step& step) {
    auto first = step.watch(torch::nn::Linear(64, 64));
    auto second = step.watch(torch::nn::Bilinear(64, 64, 64));
    auto f1 = wrap([&](Tensor t) {
      ++step.ran;
      return first(t).tanh();
    });
    auto f2 = wrap([&](Tensor a, Tensor x) { return second(a, x).sin(); });
    auto outer = wrap([&](Tensor x) {
      const auto a = f1(x);
      const auto b = f2(a, x);
      return f1(b);
    });
    step.backward(outer(step.leaf(torch::randn({96, 64}))));
  });
  constexpr int kDepth = 1;
  constexpr int kCallsOfF1 = 2;
  EXPECT_LE(twin.runs(), kCallsOfF1 * (2 + kDepth));
}

TEST_P(Nesting, ThreeDeepWithDropoutAtEachDepth) {
  Twin twin(options());
  twin.of([](auto wrap, support::Step& step) {
    auto block = step.watch(support::Mlp(64, 0.3));
    auto one = wrap([&](Tensor t) {
      ++step.ran;
      return block->forward(t).sin();
    });
    auto two = wrap([&](Tensor t) { return torch::dropout(one(t), 0.2, true).cos(); });
    auto three = wrap([&](Tensor t) { return torch::dropout(two(t), 0.2, true).tanh(); });
    step.backward(three(step.leaf(torch::randn({96, 64}))));
  });
  EXPECT_LE(twin.runs(), 2 + 2);
}

TEST_P(Nesting, ARegionMayCallItselfFromInside) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    std::function<Tensor(Tensor, int)> down = [&](Tensor t, int depth) -> Tensor {
      if (depth == 0) return t.sin();
      return wrap(down)(t.exp().tanh(), depth - 1);
    };
    step.backward(down(step.leaf(torch::randn({3})), 6));
  });
}

TEST_P(Nesting, AResultFeedsTwoRegionsAndAPlainPath) {
  // The function route adds a region's own terms first, which rounds otherwise.
  const double rounding = GetParam() == refrain::Route::Hooks ? 0 : 1e-4;
  Twin(options()).tolerance(rounding).of([](auto wrap, support::Step& step) {
    auto block = wrap(step.watch(support::Mlp(64)));
    const auto a = block(step.leaf(torch::randn({96, 64})));
    const auto b = block(a);
    const auto c = block(a + b);
    step.backward(b * c + a.sin());
  });
}

TEST_P(Nesting, ADeepChainOfTwoHundredRegions) {
  Twin twin(options());
  twin.of([](auto wrap, support::Step& step) {
    auto linear = step.watch(torch::nn::Linear(64, 64));
    auto layer = wrap([&](Tensor t) {
      ++step.ran;
      return t + linear(t).tanh();
    });
    auto x = step.leaf(torch::randn({96, 64}));
    for (int i = 0; i < 200; ++i) x = layer(x);
    step.backward(x);
  });
  EXPECT_EQ(twin.runs(), 400);
}

TEST_P(Nesting, TwoHundredRegionsInsideOne) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    auto linear = step.watch(torch::nn::Linear(64, 64));
    auto layer = wrap([&](Tensor t) { return t + linear(t).tanh(); });
    auto chain = wrap([&](Tensor t) {
      for (int i = 0; i < 200; ++i) t = layer(t);
      return t;
    });
    step.backward(chain(step.leaf(torch::randn({96, 64}))));
  });
}

TEST_P(Nesting, TwoHundredRegionsEachInsideTheLast) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    std::function<Tensor(Tensor, int)> down = [&](Tensor t, int depth) -> Tensor {
      if (depth == 0) return t.sin();
      return wrap(down)(t.cos(), depth - 1);
    };
    // A nested replay goes as deep as the nesting, each once more than the one around it.
    step.backward(down(step.leaf(torch::randn({3})), 20));
  });
}

TEST_P(Nesting, InnerRegionsKeepTheOuterReplayLow) {
  // The outer replay rebuilds only boundaries; an inner one rebuilds a block at a time.
  constexpr std::int64_t kOne = 1'000'000;
  const auto x = torch::randn({kOne / 4}).requires_grad_();
  const auto block = [](Tensor t) {
    for (int i = 0; i < 4; ++i) t = t.sin().exp();
    return t;
  };
  const auto peak_of = [&](auto inner) {
    auto outer = quiet([inner](Tensor t) mutable {
      for (int i = 0; i < 4; ++i) t = inner(t);
      return t;
    });
    x.mutable_grad().reset();
    return support::peak_bytes_of([&] { outer(x).sum().backward(); });
  };
  EXPECT_LT(peak_of(quiet(block)), peak_of(block) - 8 * kOne);
}

TEST_P(Nesting, NestedUnderCreateGraph) {
  Twin(options()).tolerance(1e-9).of([](auto wrap, support::Step& step) {
    auto inner = wrap([](Tensor t) { return t.sin().exp(); });
    auto outer = wrap([&](Tensor t) { return inner(inner(t)).cos(); });
    const auto x = step.leaf(torch::randn({3}, torch::kDouble));
    const auto g = torch::autograd::grad({outer(x).sum()}, {x}, {}, true, true)[0];
    step.backward(g);
  });
}

TEST_P(Nesting, NestedOverARetainedGraph) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    auto inner = wrap([](Tensor t) { return torch::dropout(t.sin().exp(), 0.5, true); });
    auto outer = wrap([&](Tensor t) { return inner(inner(t)).cos(); });
    const auto loss = step.loss({outer(step.leaf(torch::randn({3})))});
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

}  // namespace
