// SPDX-License-Identifier: BSD-3-Clause
// K9: grad(), inputs=, retain_graph, create_graph as without checkpointing. A17, A18, A19.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

namespace {

using support::Twin;
using torch::Tensor;
using torch::autograd::grad;

class AutogradApi : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, AutogradApi, support::kBothRoutes, support::route_name);

const auto kDouble = torch::TensorOptions(torch::kDouble);

TEST_P(AutogradApi, A17_GradGivesGradientsAndTouchesNoField) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    auto linear = step.watch(torch::nn::Linear(4, 3));
    const auto x = torch::randn({2, 4}).requires_grad_();
    const auto y = step.loss({wrap([&](Tensor t) { return linear(t).sin(); })(x)});
    const auto g = grad({y}, {x, linear->weight});
    step.note("x", g[0]);
    step.note("weight", g[1]);
    EXPECT_FALSE(linear->weight.grad().defined());
    EXPECT_FALSE(linear->bias.grad().defined());
    EXPECT_FALSE(x.grad().defined());
  });
}

TEST_P(AutogradApi, A17_BackwardWithInputsFillsOnlyThose) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    auto block = step.watch(support::Mlp(4));
    const auto x = step.leaf(torch::randn({2, 4}));
    const auto loss = step.loss({wrap(block)(x)});
    loss.backward({}, std::nullopt, false, std::vector<Tensor>{block->fc2->weight});
    EXPECT_FALSE(x.grad().defined());
    EXPECT_FALSE(block->fc1->weight.grad().defined());
  });
}

TEST_P(AutogradApi, A17_GradOfAPieceInTheMiddle) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    auto block = wrap(step.watch(support::Mlp(4)));
    const auto middle = block(torch::randn({2, 4}));
    const auto loss = step.loss({block(middle.sin())});
    step.note("middle", grad({loss}, {middle}, {}, /*retain_graph=*/true)[0]);
    loss.backward();
  });
}

TEST_P(AutogradApi, A17_UnusedInputsAreAllowedOrRefusedAsPlain) {
  const auto x = torch::randn({3}).requires_grad_();
  const auto other = torch::randn({3}).requires_grad_();
  auto region = quiet([](Tensor t) { return t.sin().exp(); });
  EXPECT_FALSE(grad({region(x).sum()}, {other}, {}, {}, false, true)[0].defined());
  EXPECT_ANY_THROW(grad({region(x).sum()}, {other}));
}

TEST_P(AutogradApi, A18_ASecondPassOverARetainedGraphDoublesTheGradients) {
  Twin twin(options());
  twin.of([](auto wrap, support::Step& step) {
    auto linear = step.watch(torch::nn::Linear(4, 3));
    const auto body = [&](Tensor t) {
      ++step.ran;
      return torch::dropout(linear(t).exp(), 0.5, true).cos();
    };
    const auto loss = step.loss({wrap(body)(step.leaf(torch::randn({2, 4})))});
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_ANY_THROW(loss.backward()) << "the graph is gone, as always";
  });
  EXPECT_LE(twin.runs(), 3);
}

TEST_P(AutogradApi, A18_ThreePassesReplayOnceEach) {
  support::RunCounter ran;
  const auto y = quiet([ran](Tensor t) {
    ++ran;
    return t.sin().exp();
  })(torch::randn({3}).requires_grad_());
  EXPECT_EQ(ran.runs(), 1);
  for (int pass = 1; pass <= 3; ++pass) {
    y.sum().backward({}, /*retain_graph=*/true);
    EXPECT_EQ(ran.runs(), 1 + pass);
  }
}

TEST_P(AutogradApi, TheReplayComesOncePerBackwardHoweverManyNodesAsk) {
  Twin twin(options());
  twin.of([](auto wrap, support::Step& step) {
    const auto [a, b, c] = wrap([&](Tensor t) {
      ++step.ran;
      return std::make_tuple(t.sin(), t.exp(), t.tanh().cos());
    })(step.leaf(torch::randn({3})));
    step.backward(a, b, c);
  });
  EXPECT_EQ(twin.runs(), 2);
}

TEST_P(AutogradApi, ALetGoResultIsNeverReplayed) {
  support::RunCounter ran;
  auto region = quiet([ran](Tensor t) {
    ++ran;
    return t.sin().exp();
  });
  region(torch::randn({3}).requires_grad_());
  EXPECT_EQ(ran.runs(), 1);
}

TEST_P(AutogradApi, A19_TheGradientPenaltyHasTheRightSecondDerivative) {
  Twin(options()).tolerance(1e-6).of([](auto wrap, support::Step& step) {
    auto block = step.watch(support::Mlp(4));
    block->to(torch::kDouble);
    const auto x = step.leaf(torch::randn({3, 4}, kDouble));
    const auto y = wrap(block)(x);
    const auto g = grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    (g.norm() - 1).pow(2).backward();
  });
}

TEST_P(AutogradApi, A19_ThirdDerivatives) {
  Twin(options()).tolerance(1e-9).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({3}, kDouble));
    auto y = wrap([](Tensor t) { return t.sin().exp(); })(x);
    for (int order = 0; order < 2; ++order) {
      y = grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    }
    step.backward(y);
  });
}

TEST_P(AutogradApi, A19_ChainedRegionsUnderCreateGraph) {
  Twin(options()).tolerance(1e-6).of([](auto wrap, support::Step& step) {
    auto block = step.watch(support::Mlp(4, 0.3));
    block->to(torch::kDouble);
    auto layer = wrap(block);
    const auto x = step.leaf(torch::randn({3, 4}, kDouble));
    const auto g = grad({layer(layer(x).tanh()).sum()}, {x}, {}, true, true)[0];
    step.backward(g);
  });
}

TEST_P(AutogradApi, A19_ARegionMayTakeGradientsItself) {
  Twin(options()).tolerance(1e-6).of([](auto wrap, support::Step& step) {
    const auto w = step.leaf(torch::randn({3}, kDouble));
    auto force = wrap([w](Tensor x) {
      const auto energy = (x * w).sin().exp().sum();
      return grad({energy}, {x}, {}, true, /*create_graph=*/true)[0].cos();
    });
    step.backward(force(step.leaf(torch::randn({3}, kDouble))));
  });
}

TEST_P(AutogradApi, A19_ARegionMayTakeGradientsOfItsOwnTensors) {
  Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor x) {
      const auto own = torch::ones({3}).requires_grad_();
      return x.sin() * grad({(own * 2).exp().sum()}, {own})[0];
    });
    step.backward(region(step.leaf(torch::randn({3}))));
  });
}

}  // namespace
