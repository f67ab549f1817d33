// SPDX-License-Identifier: BSD-3-Clause
// K12: what a body throws reaches the caller, and leaves nothing behind.
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/thread_state.hpp"

#include <stdexcept>

namespace {

using support::expect_says;
using torch::Tensor;

class Exceptions : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Exceptions, support::kBothRoutes, support::route_name);

struct MyError : std::runtime_error {
  MyError(const char* text, int number) : std::runtime_error(text), code(number) {}
  int code;
};

/// A region that works in the first run and calls `fail` in the middle of its replay.
template <class Fail>
auto failing_in_replay(Fail fail) {
  return [fail, calls = std::make_shared<int>(0)](Tensor t) {
    t = t.sin() * torch::rand_like(t);
    if (++*calls == 2) fail();
    return t.exp().cos();
  };
}

TEST_P(Exceptions, ThrownByTheFirstRunReachesTheCallerAsItIs) {
  auto region = quiet([](Tensor t) -> Tensor {
    if (t.sin().exp().defined()) throw MyError("forward", 7);
    return t;
  });
  const support::ThreadState before;
  try {
    region(torch::randn({3}, torch::requires_grad()));
    FAIL() << "nothing was thrown";
  } catch (const MyError& error) {
    EXPECT_EQ(error.code, 7);
  }
}

TEST_P(Exceptions, ThrownByTheReplayReachesBackwardsCallerWithTypeAndText) {
  const auto y = quiet(failing_in_replay([] { throw MyError("in the replay", 5); }))(
      torch::randn({3}).requires_grad_());
  try {
    y.sum().backward();
    FAIL() << "nothing was thrown";
  } catch (const MyError& error) {
    EXPECT_EQ(error.code, 5);
    EXPECT_STREQ(error.what(), "in the replay");
  }
}

TEST_P(Exceptions, ANonStandardOneIsWrappedInAnErrorThatSaysSo) {
  const auto y = quiet(failing_in_replay([] { throw 42; }))(torch::randn({3}).requires_grad_());
  expect_says<refrain::Error>({"refrain: "}, [&] { y.sum().backward(); });
}

TEST_P(Exceptions, ALibTorchErrorKeepsItsType) {
  const auto y = quiet(failing_in_replay([] { torch::ones({2}).matmul(torch::ones({3})); }))(
      torch::randn({3}).requires_grad_());
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST_P(Exceptions, EveryFailedReplayLeavesTheThreadAsItWas) {
  const std::vector<std::function<void()>> ways{[] { throw MyError("standard", 1); },
                                                [] { throw 42; }, [] { throw std::string("text"); },
                                                [] { torch::ones({2}).matmul(torch::ones({3})); }};
  for (const auto& fail : ways) {
    for (const bool autocast : {false, true}) {
      Tensor y;
      {
        const support::Autocast mode(autocast);
        y = quiet(failing_in_replay(fail))(torch::randn({3}).requires_grad_());
      }
      const support::ThreadState before;
      EXPECT_ANY_THROW(y.sum().backward());
      before.expect_unchanged();
    }
  }
}

TEST_P(Exceptions, EveryFailedReplayInsideTheCallersModesLeavesThem) {
  const auto y = quiet(failing_in_replay([] { throw MyError("standard", 1); }))(
      torch::randn({3}).requires_grad_());
  const support::Autocast on;
  const torch::NoGradGuard no_grad;
  const support::ThreadState before;
  EXPECT_ANY_THROW(torch::autograd::backward({y}, {torch::ones({3})}));
  before.expect_unchanged();
}

TEST_P(Exceptions, AFailedForwardLeavesTheThreadAsItWas) {
  auto region = quiet([](Tensor t) -> Tensor {
    if (t.sin().exp().defined()) throw 42;
    return t;
  });
  const auto x = torch::randn({3}).requires_grad_();
  const support::ThreadState before;
  EXPECT_THROW(region(x), int);
  before.expect_unchanged();
  const auto z = torch::ones({3}).requires_grad_();
  z.exp().sum().backward();
  EXPECT_TRUE(torch::allclose(z.grad(), torch::ones({3}).exp())) << "hooks were left behind";
}

TEST_P(Exceptions, AFailureInANestedReplayLeavesTheThreadAsItWas) {
  int calls = 0;
  auto inner = quiet([&calls](Tensor t) {
    t = t.sin();
    if (++calls == 3) throw MyError("third run", 3);
    return t.exp().cos();
  });
  auto outer = quiet([&](Tensor t) { return inner(t.tanh()).sin(); });
  const auto y = outer(torch::randn({3}).requires_grad_());
  const support::ThreadState before;
  EXPECT_THROW(y.sum().backward(), MyError);
  before.expect_unchanged();
}

TEST_P(Exceptions, ABackwardThatFailedMayBeTriedAgain) {
  const auto x = torch::randn({3}).requires_grad_();
  bool fail = true;
  const auto body = [&fail, calls = std::make_shared<int>(0)](Tensor t) {
    t = t.sin();
    if (++*calls > 1 && fail) throw MyError("not now", 1);
    return t.exp();
  };
  const auto y = quiet(body)(x);
  EXPECT_THROW(y.sum().backward({}, /*retain_graph=*/true), MyError);
  fail = false;
  x.mutable_grad().reset();
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), x.sin().exp() * x.cos()));
}

TEST_P(Exceptions, AnInterruptedBackwardLeavesTheNextStepWhole) {
  auto block = support::Mlp(4, 0.3);
  auto layer = quiet(block);
  const auto x = torch::randn({2, 4}).requires_grad_();
  const auto middle = layer(x);
  middle.register_hook([](const Tensor&) -> Tensor { throw MyError("stop", 1); });
  const auto loss = layer(middle).sum();
  const support::ThreadState before;
  EXPECT_THROW(loss.backward(), MyError);
  before.expect_unchanged();
  x.mutable_grad().reset();
  layer(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
