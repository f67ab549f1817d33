// SPDX-License-Identifier: BSD-3-Clause
// K5: autocast and modes of the first run are put back for the replay. A09 and its siblings.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/thread_state.hpp"
#include "support/twin.hpp"

namespace {

using support::Autocast;
using torch::Tensor;

class Surroundings : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Surroundings, support::kBothRoutes, support::route_name);

TEST_P(Surroundings, A09_TheReplayRunsUnderTheForwardsAutocast) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto linear = step.watch(torch::nn::Linear(4, 3));
    const auto x = step.leaf(torch::randn({5, 4}));
    auto layer = wrap(linear);
    Tensor y;
    {
      const Autocast on;
      y = layer(x);
    }
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.to(torch::kFloat).sum().backward();
    step.note("y", y);
  });
}

TEST_P(Surroundings, TwoBlocksUnderAutocastAreBitEqual) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto first = wrap(step.watch(support::Mlp(64, 0.3)));
    auto second = wrap(step.watch(support::Mlp(64, 0.3)));
    Tensor y;
    {
      const Autocast on;
      y = second(first(step.leaf(torch::randn({96, 64}))));
    }
    step.backward(y);
  });
}

TEST(SurroundingsHooks, ASharedBlockUnderAutocastIsBitEqual) {
  // Autograd sums both uses' gradients at the cached bf16 cast. The function route cannot: its
  // regions each have a cast of their own.
  support::Twin().of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(support::Mlp(64, 0.3)));
    Tensor y;
    {
      const Autocast on;
      y = layer(layer(step.leaf(torch::randn({96, 64}))));
    }
    step.backward(y);
  });
}

TEST_P(Surroundings, BackwardInsideAutocastDoesNotChangeAPlainForward) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(support::Mlp(64)));
    const auto y = layer(step.leaf(torch::randn({96, 64})));
    EXPECT_EQ(y.scalar_type(), torch::kFloat);
    const Autocast on;
    step.backward(y);
  });
}

TEST_P(Surroundings, TheWholeStepInsideAutocast) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const Autocast on;
    auto layer = wrap(step.watch(support::Mlp(64)));
    step.backward(layer(step.leaf(torch::randn({96, 64}))));
  });
}

TEST_P(Surroundings, TheDtypeOfTheForwardWins) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(support::Mlp(64)));
    Tensor y;
    {
      const Autocast bf16(true, torch::kBFloat16);
      y = layer(step.leaf(torch::randn({96, 64})));
    }
    const Autocast half(true, torch::kHalf);
    step.backward(y);
  });
}

TEST_P(Surroundings, AutocastOffInsideAnAutocastStepStaysOff) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const Autocast on;
    auto layer = wrap(step.watch(support::Mlp(64)));
    Tensor y;
    {
      const Autocast off(false);
      y = layer(step.leaf(torch::randn({96, 64})));
    }
    EXPECT_EQ(y.scalar_type(), torch::kFloat);
    step.backward(y);
  });
}

TEST_P(Surroundings, AutocastSwitchedInsideTheBodyIsReplayedAsWritten) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto linear = step.watch(torch::nn::Linear(6, 6));
    auto region = wrap([&](Tensor t) {
      const Autocast on;
      return linear(t).to(torch::kFloat).sin();
    });
    step.backward(region(step.leaf(torch::randn({2, 6}))));
  });
}

TEST_P(Surroundings, BackwardLeavesTheCallersStateAsItWas) {
  auto layer = quiet(support::Mlp(64, 0.2));
  Tensor y;
  {
    const Autocast on;
    y = layer(torch::randn({96, 64}).requires_grad_());
  }
  const support::ThreadState before;
  y.to(torch::kFloat).sum().backward();
  before.expect_unchanged();
}

TEST_P(Surroundings, TheForwardLeavesTheCallersStateAsItWas) {
  auto layer = quiet(support::Mlp(64));
  const auto x = torch::randn({96, 64}).requires_grad_();
  const Autocast on;
  const support::ThreadState before;
  const auto y = layer(x);
  before.expect_unchanged();
}

TEST_P(Surroundings, GradSwitchedOffInsideTheBodyStaysAnIsland) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) {
      Tensor scale;
      {
        const torch::NoGradGuard no_grad;
        scale = t.abs().max().exp();
      }
      return (t / scale).sin();
    });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST_P(Surroundings, BackwardMayRunInInferenceMode) {
  const auto x = torch::randn({4}).requires_grad_();
  const auto y = quiet([](Tensor t) { return t.sin().exp(); })(x).sum();
  {
    const c10::InferenceMode on;
    y.backward();
  }
  EXPECT_TRUE(torch::allclose(x.grad(), x.sin().exp() * x.cos()));
}

TEST_P(Surroundings, AForwardThatMayNotThrowIsReplayedToItsEnd) {
  const auto x = torch::randn({64, 64}).requires_grad_();
  const auto y = quiet([](Tensor t) noexcept {
    t = t.exp();
    for (int i = 0; i < 10; ++i) t = t + 1;
    return t;
  })(x);
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), x.exp()));
}

TEST_P(Surroundings, AForwardThatMayNotThrowMayTakeGradientsOfItsOwn) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) noexcept {
      const auto energy = t.sin().exp();
      const auto force = torch::autograd::grad({energy.sum()}, {t}, {}, true, true)[0];
      const auto slope = torch::autograd::grad({force.sum()}, {t}, {}, true, true)[0];
      return (energy * force * slope).tanh();
    });
    step.backward(region(step.leaf(torch::randn({8}))));
  });
}

TEST_P(Surroundings, BackwardMayRunWhereSavedTensorHooksAreForbidden) {
  auto inner = quiet([](Tensor t) { return t.sin().exp(); });
  auto outer = quiet([=](Tensor t) mutable { return inner(inner(t.tanh())).cos(); });
  const auto plain = [](Tensor t) { return t.tanh().sin().exp().sin().exp().cos(); };
  const auto x = torch::randn({8}).requires_grad_();
  const auto expected = torch::autograd::grad({plain(x).sum()}, {x})[0];
  const auto y = outer(x).sum();
  at::SavedTensorDefaultHooks::disable("for this test");
  y.backward();
  EXPECT_EQ(at::SavedTensorDefaultHooks::get_disabled_error_message(), "for this test");
  at::SavedTensorDefaultHooks::enable();
  EXPECT_TRUE(torch::equal(x.grad(), expected));
}

}  // namespace
