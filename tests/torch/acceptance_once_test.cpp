// SPDX-License-Identifier: BSD-3-Clause
// What a body does to the graph outside it happens once: the replay does not do it again.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

#include <memory>

namespace {

using torch::Tensor;

class Once : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Once, support::kBothRoutes, support::route_name);

Tensor doubled(const Tensor& gradient) { return gradient * 2; }

TEST_P(Once, AHookThatTheBodyPutsOnALeafArgument) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) {
      t.register_hook(doubled);
      return t.sin().exp();
    });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST_P(Once, AHookThatTheBodyPutsOnAResultOfTheGraphBefore) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) {
      t.register_hook(doubled);
      return t.sin().exp();
    });
    const auto x = step.leaf(torch::randn({4}));
    step.backward(region(x * 2));
  });
}

TEST_P(Once, AHookThatTheBodyPutsOnAParameter) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto linear = step.watch(torch::nn::Linear(4, 4));
    auto region = wrap([=](Tensor t) mutable {
      linear->weight.register_hook(doubled);
      return linear(t).sin();
    });
    const auto x = step.leaf(torch::randn({3, 4}));
    step.backward(region(x));
    step.backward(region(x));  // two hooks by now
  });
}

TEST_P(Once, AHookThatTheBodyPutsOnACapturedResult) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    const auto scale = x.cos();
    auto region = wrap([=](Tensor t) {
      scale.register_hook(doubled);
      return (t * scale).exp();
    });
    step.backward(region(x.sin()));
  });
}

TEST_P(Once, AHookThatANestedBodyPutsOnItsArgument) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto inner = wrap([](Tensor t) {
      t.register_hook(doubled);
      return t.sin().exp();
    });
    auto outer = wrap([=](Tensor t) mutable { return inner(t.tanh()).cos(); });
    step.backward(outer(step.leaf(torch::randn({4}))));
  });
}

TEST_P(Once, AHookThatTheBodyPutsAndTakesAway) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) {
      const auto handle = t.register_hook(doubled);
      auto y = t.sin().exp();
      t.remove_hook(handle);
      return y;
    });
    const auto x = step.leaf(torch::randn({4}));
    x.register_hook([](const Tensor& gradient) { return gradient * 3; });
    step.backward(region(x));
  });
}

// The function route has no part in the engine, and adds again.
TEST(OnceHooks, AGradientThatTheBodyAddsToAParameter) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto probe = step.watch(torch::nn::Linear(4, 1));
    auto region = wrap([=](Tensor t) mutable {
      probe(t.detach()).sum().backward();  // a second loss, on the side
      return t.sin().exp().tanh();
    });
    const auto x = step.leaf(torch::randn({3, 4}));
    step.backward(region(region(x)));
  });
}

TEST(OnceHooks, AGradientThatTheBodyTakesWithBackwardAndReads) {
  // Forces: the energy's gradient is the result.
  support::Twin().of([](auto wrap, support::Step& step) {
    auto energy = step.watch(torch::nn::Linear(3, 1));
    auto region = wrap([=](Tensor t) mutable {
      auto place = t.detach().clone().requires_grad_();
      energy(place).tanh().sum().backward();
      return t.sin() * place.grad();
    });
    step.backward(region(step.leaf(torch::randn({5, 3}))));
  });
}

TEST(OnceHooks, AGradientThatTheBodyAddsToNamedLeaves) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto probe = step.watch(torch::nn::Linear(4, 1));
    auto region = wrap([=](Tensor t) mutable {
      auto own = t.detach().clone().requires_grad_();
      torch::autograd::backward({probe(own).exp().sum()}, {}, /*retain_graph=*/false,
                                /*create_graph=*/false, {probe->weight, own});
      return t.sin().exp() * own.grad();
    });
    step.backward(region(step.leaf(torch::randn({3, 4}))));
  });
}

TEST(OnceHooks, AGradientThatANestedBodyAdds) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto probe = step.watch(torch::nn::Linear(4, 1));
    auto inner = wrap([=](Tensor t) mutable {
      probe(t.detach()).sum().backward();
      return t.sin().exp();
    });
    auto outer = wrap([=](Tensor t) mutable { return inner(inner(t).tanh()).cos(); });
    step.backward(outer(step.leaf(torch::randn({3, 4}))));
  });
}

TEST(OnceHooks, AGradientThatTheBodySendsThroughItsArgument) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t) {
      (t * 2).sum().backward({}, /*retain_graph=*/true);  // reaches what the argument was made from
      return t.sin().exp().tanh();
    });
    const auto x = step.leaf(torch::randn({4}));
    step.backward(region(x * 3));
  });
}

TEST(OnceHooks, AGradientThatTheBodySendsThroughACapturedResult) {
  support::Twin().of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    const auto scale = x * 3;
    auto region = wrap([=](Tensor t) {
      (scale * 2).sum().backward({}, /*retain_graph=*/true);
      return (t * scale).sin().exp().tanh();
    });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST(OnceHooks, AnIntermediateWhoseGradientTheBodyReads) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto probe = step.watch(torch::nn::Linear(4, 4));
    auto region = wrap([=](Tensor t) mutable {
      const auto kept = probe(t.detach());
      const auto heard = kept.sin();
      Tensor seen;
      kept.retain_grad();
      heard.register_hook([&](const Tensor& gradient) { seen = gradient; });
      heard.exp().sum().backward();
      return t.sin() * kept.grad() * seen;
    });
    step.backward(region(step.leaf(torch::randn({3, 4}))));
  });
}

TEST_P(Once, AHookThatTheBodyTakesAway) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    x.register_hook(doubled);
    const auto second = x.register_hook(doubled);
    auto taken = std::make_shared<bool>(false);
    auto region = wrap([=](Tensor t) {
      if (!*taken) t.remove_hook(second);
      *taken = true;
      return t.sin().exp();
    });
    step.backward(region(x));
  });
}

TEST(OnceHooks, AGradientOfAParameterThatTheBodyClips) {
  support::Twin().of([](auto wrap, support::Step& step) {
    const auto weight = step.leaf(torch::randn({4}));
    auto region = wrap([=](Tensor t) {
      {
        const torch::NoGradGuard no_grad;
        weight.clamp_(-0.5, 0.5);
      }
      (weight * t.detach()).sum().backward();
      return t.sin().exp().tanh();
    });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST_P(Once, AHookOnAParameterThatTheBodyClips) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto weight = step.leaf(torch::randn({4}));
    auto region = wrap([=](Tensor t) {
      {
        const torch::NoGradGuard no_grad;
        weight.clamp_(-0.5, 0.5);
      }
      weight.register_hook(doubled);
      return (t * weight).sin().exp();
    });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST_P(Once, AHookThatTheBodyRenewsByItsHandle) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto weight = step.leaf(torch::randn({4}));
    auto handle = std::make_shared<int>(-1);
    auto region = wrap([=](Tensor t) {
      if (*handle >= 0) weight.remove_hook(static_cast<unsigned>(*handle));
      *handle = static_cast<int>(weight.register_hook(doubled));
      return (t * weight).sin().exp();
    });
    for (int i = 0; i < 3; ++i) {
      step.backward(region(step.leaf(torch::randn({4}))));
      step.note("gradient", weight.grad());
    }
  });
}

}  // namespace
