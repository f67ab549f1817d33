// SPDX-License-Identifier: BSD-3-Clause
// refrain::keep and refrain::once: code that runs once a step.
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/keep.hpp>
#include <refrain/replay.hpp>
#include <refrain/verify.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using refrain::keep;
using refrain::once;
using support::expect_says;
using torch::Tensor;
namespace policy = refrain::policy;

class Keep : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Keep, support::kBothRoutes, support::route_name);

class KeepOnHooks : public testing::Test {};

TEST_P(Keep, ARouterWhoseTiesFlip) {
  support::RunCounter chosen;
  bool flip = false;
  support::Twin(options()).of([&](auto wrap, support::Step& step) {
    chosen.reset();
    auto region = wrap([&, ran = step.ran](const Tensor& x) {
      ++ran;
      const auto scores = torch::softmax(x, 1);
      // Equal scores everywhere: which two win is the kernel's whim, here of every second run.
      const auto route = keep("router", [&] {
        ++chosen;
        flip = refrain::replaying() || !flip;
        return flip ? torch::tensor({0, 1}) : torch::tensor({2, 3});
      });
      return scores.index_select(1, route).exp() * scores.sum();
    });
    flip = false;
    step.backward(region(step.leaf(torch::ones({3, 4}))));
    EXPECT_EQ(chosen.runs(), 1);
  });
}

TEST_P(Keep, ATupleOfWhatTopKGives) {
  support::RunCounter chosen;
  const auto runs = support::Twin(options())
                        .of([&](auto wrap, support::Step& step) {
                          chosen.reset();
                          auto region = wrap([&, ran = step.ran](const Tensor& x) {
                            ++ran;
                            const auto scores = x.sin();
                            const auto [values, places] = keep("top", [&] {
                              ++chosen;
                              return torch::topk(scores.detach(), 2);
                            });
                            return scores.gather(1, places).exp() * values;
                          });
                          step.backward(region(step.leaf(torch::randn({3, 5}))));
                        })
                        .runs();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(chosen.runs(), 1);
}

TEST_F(KeepOnHooks, GradientsFlowThroughAsInThePlainRun) {
  support::RunCounter ran;
  support::Twin().of([&](auto wrap, support::Step& step) {
    ran.reset();
    auto linear = step.watch(torch::nn::Linear(4, 4));
    auto region = wrap([&, linear](const Tensor& x) mutable {
      const auto hidden = x.sin().exp();
      const auto mixed = keep("mixed", [&] {
        ++ran;
        return linear(hidden).tanh() * hidden;
      });
      return (mixed * hidden).cos() + mixed.exp();
    });
    step.backward(region(step.leaf(torch::randn({3, 4}))));
    EXPECT_EQ(ran.runs(), 1);
  });
}

TEST_F(KeepOnHooks, GradientsFlowTwiceThroughARetainedGraph) {
  support::RunCounter ran;
  support::Twin().of([&](auto wrap, support::Step& step) {
    ran.reset();
    auto region = wrap([&](const Tensor& x) {
      const auto kept = keep("kept", [&] {
        ++ran;
        return x.sin().exp();
      });
      return (kept * x).tanh();
    });
    const auto y = region(step.leaf(torch::randn({3, 4})) * 2);
    const auto loss = step.loss({y});
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_EQ(ran.runs(), 1);
  });
}

TEST_F(KeepOnHooks, SecondDerivativesToo) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto region = wrap([](const Tensor& x) {
      const auto kept = keep("kept", [&] { return x.sin().exp(); });
      return (kept * x).tanh();
    });
    const auto x = step.leaf(torch::randn({3, 4}, torch::kDouble));
    const auto first = torch::autograd::grad({step.loss({region(x)})}, {x}, {}, true, true)[0];
    first.square().sum().backward();
  });
}

TEST_P(Keep, RandomNumbersDrawnInsideAreNotDrawnAgain) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](const Tensor& x) {
      const auto before = torch::rand_like(x);
      const auto noise = keep("noise", [&] { return torch::rand({7}).slice(0, 0, 4); });
      const auto after = torch::dropout(x.exp(), 0.5, true);
      return (x * before * noise).sin() + after.cos();
    });
    step.backward(region(step.leaf(torch::randn({3, 4}))));
  });
}

TEST_P(Keep, OnceRunsInTheFirstRunOnly) {
  int logged = 0;
  support::Twin(options()).of([&](auto wrap, support::Step& step) {
    logged = 0;
    auto region = wrap([&, ran = step.ran](const Tensor& x) {
      ++ran;
      const auto y = x.sin();
      once([&] {
        ++logged;
        (void)torch::rand({3});
        (void)(y * x).exp().sum();  // autograd saves here
      });
      return torch::dropout(y, 0.5, true).exp();
    });
    step.backward(region(step.leaf(torch::randn({3, 4}))));
    EXPECT_EQ(logged, 1);
  });
}

TEST_P(Keep, InNestedRegionsTheCodeRunsOnceToo) {
  support::RunCounter kept;
  support::RunCounter logged;
  support::Twin(options()).of([&](auto wrap, support::Step& step) {
    kept.reset();
    logged.reset();
    auto inner = wrap([&](const Tensor& x) {
      const auto index = keep("index", [&] {
        ++kept;
        return x.detach().argsort(1, false);
      });
      once([&] { ++logged; });
      return x.gather(1, index).sin().exp();
    });
    auto outer = wrap([&, ran = step.ran](const Tensor& x) {
      ++ran;
      const auto scale = keep("scale", [&] {
        ++kept;
        return x.detach().abs().mean();
      });
      return inner(x * scale) + inner(x.cos());
    });
    step.backward(outer(step.leaf(torch::randn({3, 4}))));
    EXPECT_EQ(kept.runs(), 3);
    EXPECT_EQ(logged.runs(), 2);
  });
}

TEST_F(KeepOnHooks, ARegionInsideTheCodeIsReplayedByItself) {
  support::RunCounter outside;
  support::RunCounter inside;
  support::Twin().of([&](auto wrap, support::Step& step) {
    outside.reset();
    inside.reset();
    auto inner = wrap([&](const Tensor& x) {
      ++inside;
      return x.sin().exp();
    });
    auto outer = wrap([&](const Tensor& x) {
      ++outside;
      const auto y = keep("inner", [&] { return inner(x.cos()); });
      return y.tanh();
    });
    step.backward(outer(step.leaf(torch::randn({3, 4}))));
  });
  EXPECT_EQ(outside.runs(), 2);
  EXPECT_EQ(inside.runs(), 2);  // once more, for what it forgot
}

TEST_P(Keep, CodeInsideKeptCodeIsAPartOfIt) {
  support::RunCounter ran;
  support::Twin(options()).of([&](auto wrap, support::Step& step) {
    ran.reset();
    auto region = wrap([&](const Tensor& x) {
      const auto outer = keep("outer", [&] {
        once([&] { ++ran; });
        return keep("inner", [&] {
          ++ran;
          return x.detach().cos();
        });
      });
      const auto next = keep("next", [&] {
        ++ran;
        return x.detach().tanh();
      });
      return (outer * next * x).sin().exp();
    });
    step.backward(region(step.leaf(torch::randn({3}))));
    EXPECT_EQ(ran.runs(), 3);
  });
}

TEST_P(Keep, OfNamesThatAreChosenTheOthersRunAgain) {
  support::RunCounter first;
  support::RunCounter second;
  support::Twin(options().keep(policy::keep_named({"second"})))
      .of([&](auto wrap, support::Step& step) {
        first.reset();
        second.reset();
        auto region = wrap([&](const Tensor& x) {
          const auto a = keep("first", [&] {
            ++first;
            return x.sin().exp();
          });
          const auto b = keep("second", [&] {
            ++second;
            return x.detach().cos();
          });
          return (a * b).tanh();
        });
        step.backward(region(step.leaf(torch::randn({3, 4}))));
      });
  EXPECT_EQ(first.runs(), 2);
  EXPECT_EQ(second.runs(), 1);
}

TEST_P(Keep, EachRegionOfANestChoosesForItself) {
  support::RunCounter ran;
  const auto outer_options = options().keep(policy::keep_named({"value"}));
  const auto inner_options = options().keep(policy::keep_named({}));
  auto inner = refrain::checkpoint(
      [&](const Tensor& x) {
        const auto kept = keep("value", [&] {
          ++ran;
          return x.detach().sin();
        });
        return (kept * x).exp();
      },
      inner_options);
  auto outer =
      refrain::checkpoint([&](const Tensor& x) { return inner(x.cos()).tanh(); }, outer_options);
  const auto x = torch::randn({3, 4}).requires_grad_();
  outer(x).sum().backward();
  const auto gradient = x.grad().clone();
  EXPECT_EQ(ran.runs(), 2);  // the forward, and the inner region's replay
  x.mutable_grad() = Tensor();
  {
    const refrain::PlainScope plain;
    outer(x).sum().backward();
  }
  EXPECT_TRUE(torch::equal(gradient, x.grad()));
}

TEST(KeepOutside, OfRegionsItIsAPlainCall) {
  int ran = 0;
  const auto x = torch::randn({3}).requires_grad_();
  const auto y = keep("value", [&] {
    ++ran;
    return x.sin();
  });
  y.sum().backward();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().cos()));
  once([&] { ++ran; });
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(keep("number", [] { return 3; }), 3);
}

TEST_P(Keep, NumbersAndStringsAreKeptAsWell) {
  int calls = 0;
  auto region = quiet([&](const Tensor& x) {
    const auto [name, factor] = keep("said", [&] {
      ++calls;
      return std::make_tuple(std::string("x"), x.detach().max().item<double>());
    });
    EXPECT_EQ(name, "x");
    return (x * factor).sin();
  });
  region(torch::randn({3}).requires_grad_()).sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST_P(Keep, AValueThatWasChangedInPlaceIsAnError) {
  auto region = quiet([](const Tensor& x) {
    const auto scale = keep("scale", [&] { return x.detach().sin(); });
    auto y = (x * scale).exp();
    if (!refrain::replaying()) scale.add_(1);
    return y.sin();
  });
  const auto y = region(torch::randn({3}).requires_grad_());
  expect_says<refrain::DivergenceError>({"keep(\"scale\") gave was changed in place", "clone"},
                                        [&] { y.sum().backward(); });
}

TEST_P(Keep, WhatTheCodeWritesOutsideIsSeenByTheReplayAndMovesOnce) {
  for (const bool through_keep : {true, false}) {
    support::Twin(options()).of([&](auto wrap, support::Step& step) {
      const auto calls = torch::zeros({2});
      auto region = wrap([=](const Tensor& x) {
        const auto before = calls.clone();
        if (through_keep) {
          (void)keep("count", [&] { return calls.add_(1).sum(); });
        } else {
          once([&] { calls.add_(1); });
        }
        return (x * calls.clone() + before).sin().exp();
      });
      const auto x = step.leaf(torch::randn({2}));
      step.backward(region(x), region(x));
      step.note("calls", calls);
    });
  }
}

TEST_P(Keep, CodeThatChangesATensorOfTheRegionIsRefused) {
  const auto refused = [](const auto& region) {
    expect_says<refrain::Error>({"keep(\"sorted\")", "changes in place a tensor of the region"},
                                [&] { (void)region(torch::randn({3})); });
  };
  const auto w = torch::randn({3}).requires_grad_();
  refused(quiet([=](const Tensor& x) {
    const auto y = x.detach().sin();
    (void)keep("sorted", [&] { return y.mul_(2).sum(); });
    return (w * y).exp();
  }));
  refused(quiet([=](const Tensor& x) {
    (void)keep("sorted", [&] { return x.mul_(2).sum(); });
    return (w * x).exp();
  }));
}

TEST_P(Keep, AnotherPathIsAnError) {
  bool other = false;
  auto region = quiet([&](const Tensor& x) {
    const auto scale = keep(other ? "b" : "a", [&] { return x.detach().sin(); });
    return (x * scale).exp();
  });
  const auto y = region(torch::randn({3}).requires_grad_());
  other = true;
  expect_says<refrain::DivergenceError>({"keeps other values", "keep(\"b\"), then `a`"},
                                        [&] { y.sum().backward(); });
}

TEST_P(Keep, CodeThatThrowsKeepsNothingAndTheNextStepWorks) {
  bool fails = true;
  auto region = quiet([&](const Tensor& x) {
    const auto scale = keep("scale", [&] {
      if (fails) throw std::runtime_error("no route");
      return x.detach().sin();
    });
    return (x * scale).exp();
  });
  const auto x = torch::randn({3}).requires_grad_();
  EXPECT_THROW((void)region(x), std::runtime_error);
  fails = false;
  region(x).sum().backward();
  const auto s = x.detach().sin();
  EXPECT_TRUE(torch::equal(x.grad(), (x.detach() * s).exp() * s));
}

TEST_F(KeepOnHooks, TheFunctionRouteRefusesAValueThatNeedsAGradient) {
  auto region = refrain::checkpoint(
      [](const Tensor& x) { return keep("mixed", [&] { return x.sin(); }).exp(); },
      refrain::CheckpointOptions(refrain::Route::Function).name("mixer"));
  expect_says<refrain::Error>({"keep(\"mixed\") in `mixer`", "Route::Hooks"},
                              [&] { (void)region(torch::randn({3}).requires_grad_()); });
}

TEST_P(Keep, AValueMayLeaveTheRegion) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](const Tensor& x) {
      auto places = keep("places", [&] { return x.detach().argsort(1, false); });
      return std::make_tuple(x.gather(1, places).sin().exp(), places);
    });
    const auto [y, places] = region(step.leaf(torch::randn({3, 4})));
    step.note("places", places);
    step.backward(y);
  });
}

TEST_F(KeepOnHooks, AGradientTakenInsideTheBodyReplaysWithoutTheCode) {
  support::RunCounter ran;
  support::Twin().of([&](auto wrap, support::Step& step) {
    ran.reset();
    auto region = wrap([&](const Tensor& x) {
      const auto kept = keep("kept", [&] {
        ++ran;
        return x.detach().cos();
      });
      const auto y = (x * kept).sin().exp();
      const auto slope = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
      return slope.tanh() * y;
    });
    step.backward(region(step.leaf(torch::randn({3, 4}))));
    EXPECT_EQ(ran.runs(), 1);
  });
}

}  // namespace
