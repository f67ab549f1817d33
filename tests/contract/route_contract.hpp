// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/default_device.hpp"
#include "support/live_bytes.hpp"
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/thread_state.hpp"
#include "support/twin.hpp"
#include <refrain/checkpoint.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

/// Where the contract's tensors live, unless a route says otherwise.
struct OnHost {
  static torch::Device device() { return torch::kCPU; }
};

/// What any way into autograd owes the rest of the library. A route instantiates it with a type
/// that has `static refrain::Route route()` and `static torch::Device device()`, and lives around
/// each test.
template <class Way>
class RouteContract : public testing::Test {
 protected:
  using Tensor = torch::Tensor;

  void SetUp() override {
    way_ = std::make_shared<Way>();
    support::seed(20, Way::device());
  }
  void TearDown() override { way_.reset(); }

  static refrain::CheckpointOptions options() {
    return refrain::CheckpointOptions().route(Way::route());
  }

  template <class Thing>
  static auto quiet(Thing thing) {
    return refrain::checkpoint(std::move(thing), options());
  }

  /// Counts its runs; saves more than one tensor.
  static auto counted(const support::RunCounter& ran) {
    return [ran](Tensor t) {
      ++ran;
      return t.sin().exp().tanh();
    };
  }

  static Tensor random(std::vector<std::int64_t> shape = {96, 64}) {
    return torch::randn(shape).to(Way::device());
  }
  static Tensor input() { return random().requires_grad_(); }

  template <class Holder, class... Args>
  static Holder make(Args&&... args) {
    const support::DefaultDevice there(Way::device());
    return Holder(std::forward<Args>(args)...);
  }

  static support::Twin twin() { return support::Twin(options()).on(Way::device()); }

  static std::int64_t live_bytes() { return support::live_bytes(Way::device()); }

 private:
  std::shared_ptr<Way> way_;
};

TYPED_TEST_SUITE_P(RouteContract);

TYPED_TEST_P(RouteContract, GivesThePlainRunsResultGradientsAndStream) {
  this->twin().of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(TestFixture::template make<support::Mlp>(64, 0.3)));
    for (int i = 0; i < 3; ++i) step.backward(layer(step.leaf(TestFixture::random())));
  });
}

TYPED_TEST_P(RouteContract, RunsTheBodyOnceMoreInBackward) {
  support::RunCounter ran;
  const auto y = this->quiet(this->counted(ran))(this->input());
  EXPECT_EQ(ran.runs(), 1);
  y.sum().backward();
  EXPECT_EQ(ran.runs(), 2);
}

TYPED_TEST_P(RouteContract, NeverRunsItAgainWithoutBackward) {
  support::RunCounter ran;
  this->quiet(this->counted(ran))(this->input());
  EXPECT_EQ(ran.runs(), 1);
}

TYPED_TEST_P(RouteContract, ForgetsWhatTheBodySaved) {
  const auto x = this->random({100'000}).requires_grad_();
  auto region = this->quiet([](torch::Tensor t) { return t.sin().exp().tanh().sum(); });
  const auto before = this->live_bytes();
  const auto y = region(x);
  EXPECT_LT(this->live_bytes() - before, 1000);
  y.backward();
}

TYPED_TEST_P(RouteContract, FreesEverythingAfterBackward) {
  auto layer = this->quiet(TestFixture::template make<support::Mlp>(64, 0.3));
  const auto step = [&](int) { layer(this->input()).sum().backward(); };
  EXPECT_EQ(support::growth_over(20, step, /*warm_up=*/5, TypeParam::device()), 0);
}

TYPED_TEST_P(RouteContract, MovesBuffersOnce) {
  this->twin().of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(TestFixture::template make<torch::nn::BatchNorm1d>(64)));
    for (int i = 0; i < 2; ++i) step.backward(layer(step.leaf(TestFixture::random())));
  });
}

TYPED_TEST_P(RouteContract, PutsAutocastBack) {
  this->twin().of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(TestFixture::template make<support::Mlp>(64)));
    torch::Tensor y;
    {
      const support::Autocast on(true, at::kBFloat16, TypeParam::device().type());
      y = layer(step.leaf(TestFixture::random()));
    }
    step.backward(y);
  });
}

TYPED_TEST_P(RouteContract, SaysThatItReplays) {
  int first = 0;
  int again = 0;
  auto region = this->quiet([&](torch::Tensor t) {
    ++(refrain::replaying() ? again : first);
    return t.sin().exp();
  });
  region(this->input()).sum().backward();
  EXPECT_EQ(std::tie(first, again), std::make_tuple(1, 1));
}

TYPED_TEST_P(RouteContract, NestsAndChains) {
  this->twin().of([](auto wrap, support::Step& step) {
    auto first = wrap(step.watch(TestFixture::template make<support::Mlp>(64, 0.2)));
    auto second = wrap(step.watch(TestFixture::template make<support::Mlp>(64, 0.2)));
    auto outer = wrap([&](torch::Tensor t) { return second(first(t.sin())).cos(); });
    auto after = wrap([](torch::Tensor t) { return torch::dropout(t, 0.3, true).exp(); });
    step.backward(after(outer(step.leaf(TestFixture::random()))));
  });
}

TYPED_TEST_P(RouteContract, GoesBackwardTwiceOverARetainedGraph) {
  support::RunCounter ran;
  const auto x = this->input();
  const auto y = this->quiet(this->counted(ran))(x).sum();
  y.backward({}, /*retain_graph=*/true);
  const auto once = x.grad().clone();
  y.backward();
  EXPECT_TRUE(torch::equal(x.grad().cpu(), once.cpu() * 2));
  EXPECT_LE(ran.runs(), 3);
  EXPECT_ANY_THROW(y.backward());
}

TYPED_TEST_P(RouteContract, PassesUndifferentiableResultsThrough) {
  const auto [y, index] =
      this->quiet([](torch::Tensor t) { return t.sin().max(1); })(this->input());
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(index.requires_grad());
  EXPECT_EQ(index.scalar_type(), torch::kLong);
  y.sum().backward();
}

TYPED_TEST_P(RouteContract, IsAPlainCallWithoutGradMode) {
  support::RunCounter ran;
  const torch::NoGradGuard no_grad;
  const auto y = this->quiet(this->counted(ran))(this->input());
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(ran.runs(), 1);
}

TYPED_TEST_P(RouteContract, IsAPlainCallInsideAPlainScope) {
  support::RunCounter ran;
  torch::Tensor y;
  {
    const refrain::PlainScope plain;
    y = this->quiet(this->counted(ran))(this->input());
  }
  y.sum().backward();
  EXPECT_EQ(ran.runs(), 1);
}

TYPED_TEST_P(RouteContract, RefusesAChangedParameter) {
  auto linear = TestFixture::template make<torch::nn::Linear>(64, 64);
  const auto y = this->quiet(linear)(this->input());
  {
    const torch::NoGradGuard no_grad;
    linear->weight.add_(1);
  }
  support::expect_says<refrain::DivergenceError>({"refrain: ", "changed"},
                                                 [&] { y.sum().backward(); });
}

TYPED_TEST_P(RouteContract, HandsOnWhatTheReplayThrowsAndTidiesUp) {
  int calls = 0;
  auto region = this->quiet([&calls](torch::Tensor t) {
    t = t.sin() * torch::rand_like(t);
    if (++calls == 2) throw std::out_of_range("second run");
    return t.exp().tanh();
  });
  const auto y = region(this->input());
  const support::ThreadState before;
  EXPECT_THROW(y.sum().backward(), std::out_of_range);
  before.expect_unchanged();
}

TYPED_TEST_P(RouteContract, HandsOnWhatTheFirstRunThrowsAndTidiesUp) {
  const auto x = this->input();
  auto region = this->quiet([](torch::Tensor t) -> torch::Tensor {
    if (t.sin().defined()) throw std::out_of_range("first run");
    return t;
  });
  const support::ThreadState before;
  EXPECT_THROW(region(x), std::out_of_range);
  before.expect_unchanged();
}

REGISTER_TYPED_TEST_SUITE_P(RouteContract, GivesThePlainRunsResultGradientsAndStream,
                            RunsTheBodyOnceMoreInBackward, NeverRunsItAgainWithoutBackward,
                            ForgetsWhatTheBodySaved, FreesEverythingAfterBackward, MovesBuffersOnce,
                            PutsAutocastBack, SaysThatItReplays, NestsAndChains,
                            GoesBackwardTwiceOverARetainedGraph,
                            PassesUndifferentiableResultsThrough, IsAPlainCallWithoutGradMode,
                            IsAPlainCallInsideAPlainScope, RefusesAChangedParameter,
                            HandsOnWhatTheReplayThrowsAndTidiesUp,
                            HandsOnWhatTheFirstRunThrowsAndTidiesUp);
