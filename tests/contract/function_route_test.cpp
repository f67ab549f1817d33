// SPDX-License-Identifier: BSD-3-Clause
#include "route_contract.hpp"

namespace {

using torch::Tensor;

struct FunctionRoute : OnHost {
  static refrain::Route route() { return refrain::Route::Function; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Function, RouteContract, FunctionRoute);

const auto kFunction = refrain::CheckpointOptions(refrain::Route::Function).name("a.region");

/// What this route cannot serve it says, with a way out, when the region is called.
template <class Body>
void expect_refused(std::initializer_list<const char*> parts, Body body) {
  const auto x = torch::randn({4}).requires_grad_() * 1;
  auto region = refrain::checkpoint(body, kFunction);
  const support::ThreadState before;
  support::expect_says<refrain::Error>(parts, [&] { region(x); });
  before.expect_unchanged();
}

TEST(FunctionRouteRefuses, AnArgumentChangedInPlace) {
  expect_refused({"a.region", "argument 0", "in place", "Route::Hooks"},
                 [](Tensor t) { return t.mul_(2).sin(); });
}

TEST(FunctionRouteRefuses, AViewOfMemoryFromOutside) {
  expect_refused({"a.region", "view", "Route::Hooks"}, [](Tensor t) { return t.slice(0, 1, 3); });
}

struct Opaque {
  Tensor hidden;
};

TEST(FunctionRouteRefuses, AResultWhoseTensorsItCannotFind) {
  expect_refused({"a.region", "visit_tensors", "Route::Hooks"},
                 [](Tensor t) { return Opaque{t.sin()}; });
}

TEST(FunctionRouteRefuses, AReplayThatReachesOtherTensors) {
  int calls = 0;
  const auto other = torch::randn({4}).requires_grad_();
  const auto body = [&](Tensor t) { return ++calls == 1 ? t.sin() : t.sin() * other; };
  const auto y = refrain::checkpoint(body, kFunction)(torch::randn({4}).requires_grad_());
  support::expect_says<refrain::DivergenceError>({"a.region", "likely cause"},
                                                 [&] { y.sum().backward(); });
}

TEST(FunctionRouteRefuses, AReplayThatGivesAnotherResult) {
  int calls = 0;
  const auto body = [&](Tensor t) { return ++calls == 1 ? t.sin() : t.sin().slice(0, 0, 2); };
  const auto y = refrain::checkpoint(body, kFunction)(torch::randn({4}).requires_grad_());
  support::expect_says<refrain::DivergenceError>({"a.region", "float32[4]", "float32[2]"},
                                                 [&] { y.sum().backward(); });
}

TEST(FunctionRoute, ServesAParameterThatItsForwardChanges) {
  // What the replay saves of it must last until the replay's own gradients are computed.
  support::Twin(kFunction).of([](auto wrap, support::Step& step) {
    const auto weight = step.leaf(torch::randn({4, 4}));
    auto body = wrap([weight](Tensor t) {
      {
        const torch::NoGradGuard no_grad;
        weight.clamp_(-1, 1);
      }
      return t.matmul(weight).tanh();
    });
    step.backward(body(step.leaf(torch::randn({2, 4}))));
    step.note("weight", weight);
  });
}

TEST(FunctionRoute, ServesAWriteToAViewOfWhatTheBodyMade) {
  support::Twin(kFunction).of([](auto wrap, support::Step& step) {
    auto body = wrap([](Tensor t, Tensor u) {
      auto whole = t * 2;
      whole[0].add_(u[0].sin());
      whole[1].mul_(u[1]);
      return whole.exp();
    });
    const auto t = step.leaf(torch::randn({3, 4}));
    step.backward(body(t, step.leaf(torch::randn({3, 4}))));
  });
}

TEST(FunctionRoute, ServesABufferThatItWritesTwice) {
  support::Twin(kFunction).of([](auto wrap, support::Step& step) {
    auto norm = step.watch(torch::nn::BatchNorm1d(4));
    auto body = wrap([norm](Tensor t) mutable { return norm(norm(t).sin()); });
    step.backward(body(step.leaf(torch::randn({8, 4}))));
  });
}

TEST(FunctionRoute, SumsASharedWeightsGradientRegionByRegion) {
  // Same terms, other order: equal up to rounding where a weight is used in several calls.
  support::Twin(kFunction).tolerance(1e-4).of([](auto wrap, support::Step& step) {
    auto inner = wrap(step.watch(support::Mlp(64, 0.2)));
    auto outer = wrap([&](Tensor t) { return inner(inner(t.sin())).cos(); });
    step.backward(outer(outer(step.leaf(torch::randn({96, 64})))));
  });
}

TEST(FunctionRoute, InstallsNothingInTheEngine) {
  // ctest runs each test in a process of its own: nothing was installed before.
  const auto* before = &torch::autograd::Engine::get_default_engine();
  refrain::checkpoint([](Tensor t) { return t.sin().exp(); },
                      kFunction)(torch::randn({4}).requires_grad_())
      .sum()
      .backward();
  EXPECT_EQ(&torch::autograd::Engine::get_default_engine(), before);
}

}  // namespace
