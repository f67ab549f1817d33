// SPDX-License-Identifier: BSD-3-Clause
// Every way a step can fail leaves grad mode, autocast, random stream, dispatch keys and hooks as
// they were, and the next step whole.
#include "support/custom_functions.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/thread_state.hpp"

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace {

using torch::Tensor;

class FailurePaths : public support::OnBothRoutes {
 protected:
  /// After a failure the thread must be as before, and both plain and checkpointed steps exact.
  void expect_whole(const support::ThreadState& before) {
    before.expect_unchanged();
    auto block = support::Mlp(64);
    auto layer = quiet(block);
    const auto x = torch::randn({96, 64}).requires_grad_();
    const auto g = torch::autograd::grad({block(x).sin().sum()}, {x})[0];
    layer(x).sin().sum().backward();
    EXPECT_TRUE(torch::equal(g, x.grad()));
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, FailurePaths, support::kBothRoutes, support::route_name);

/// Bodies that fail in their second run, each at another place.
using Body = std::function<Tensor(Tensor)>;
std::map<std::string, Body> failing_bodies(std::shared_ptr<int> runs) {
  const auto fails = [runs] { return ++*runs == 2; };
  return {{"before any operator",
           [=](Tensor t) {
             if (fails()) throw std::runtime_error("on purpose");
             return t.sin().exp();
           }},
          {"between operators",
           [=](Tensor t) {
             t = t.sin() * torch::rand_like(t);
             if (fails()) throw std::runtime_error("on purpose");
             return t.exp().cos();
           }},
          {"in an operator",
           [=](Tensor t) {
             t = t.sin() * torch::rand_like(t);
             return (t + torch::ones({fails() ? 3 : 2})).exp();
           }},
          {"in an island without grad under its own autocast",
           [=](Tensor t) {
             t = t.sin();
             const torch::NoGradGuard no_grad;
             const support::Autocast on;
             const auto scale = torch::rand({});
             if (fails()) throw std::runtime_error("on purpose");
             const torch::AutoGradMode grad(true);
             return t.exp() * scale.item<double>();
           }},
          {"by saving something else",
           [=](Tensor t) {
             t = t.sin() * torch::rand_like(t);
             return fails() ? t.unsqueeze(0).exp().cos().sum(0, true) : t.exp().cos();
           }},
          {"by a value that is no exception", [=](Tensor t) {
             t = t.sin() * torch::rand_like(t);
             if (fails()) throw 3;
             return t.exp().cos();
           }}};
}

TEST_P(FailurePaths, AFailedReplay) {
  auto runs = std::make_shared<int>(0);
  for (const auto& [where, body] : failing_bodies(runs)) {
    SCOPED_TRACE(where);
    *runs = 0;
    const auto y = quiet(body)(torch::randn({2}).requires_grad_());
    const support::ThreadState before;
    EXPECT_ANY_THROW(y.sum().backward());
    expect_whole(before);
  }
}

TEST_P(FailurePaths, AFailedNestedReplay) {
  auto runs = std::make_shared<int>(0);
  for (const auto& [where, body] : failing_bodies(runs)) {
    SCOPED_TRACE(where);
    *runs = -1;  // fails in its third run: the inner region's own replay
    auto inner = quiet(body);
    auto outer = quiet([inner](Tensor t) { return inner(t.cos()).tanh(); });
    const auto y = outer(torch::randn({2}).requires_grad_());
    const support::ThreadState before;
    EXPECT_ANY_THROW(y.sum().backward());
    expect_whole(before);
  }
}

TEST_P(FailurePaths, AFailedFirstRun) {
  auto runs = std::make_shared<int>(0);
  for (const auto& [where, body] : failing_bodies(runs)) {
    if (where == "by saving something else") continue;
    SCOPED_TRACE(where);
    *runs = 1;
    const auto x = torch::randn({2}).requires_grad_();
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    const auto random = generator.get_state();
    const support::ThreadState before;
    EXPECT_ANY_THROW(quiet(body)(x));
    generator.set_state(random);  // it drew, as a plain run would
    expect_whole(before);
  }
}

TEST_P(FailurePaths, AFailureOfTheEngineBeforeAndAfterAReplay) {
  for (const bool in_front : {true, false}) {
    auto layer = quiet(support::Mlp(64, 0.3));
    const auto x = torch::randn({96, 64}).requires_grad_();
    const auto inside = x * 1;
    const auto y = layer(inside);
    (in_front ? y : inside).register_hook([](const Tensor&) -> Tensor {
      throw std::runtime_error("in a hook of the user's");
    });
    const auto loss = y.sum();
    const support::ThreadState before;
    EXPECT_THROW(loss.backward(), std::runtime_error);
    expect_whole(before);
  }
}

TEST_P(FailurePaths, AChangedTensor) {
  auto linear = torch::nn::Linear(64, 64);
  auto layer = quiet(linear);
  const auto y = layer(torch::randn({96, 64}).requires_grad_());
  {
    const torch::NoGradGuard no_grad;
    linear->weight.mul_(2);
  }
  const support::ThreadState before;
  EXPECT_THROW(y.sum().backward(), refrain::Error);
  expect_whole(before);
}

TEST_P(FailurePaths, AGraphThatIsGone) {
  const auto loss = quiet(support::Mlp(64))(torch::randn({96, 64})).sum();
  loss.backward();
  const support::ThreadState before;
  EXPECT_ANY_THROW(loss.backward());
  expect_whole(before);
}

TEST_P(FailurePaths, UnderTheCallersOwnModes) {
  auto runs = std::make_shared<int>(0);
  for (const auto& [where, body] : failing_bodies(runs)) {
    SCOPED_TRACE(where);
    *runs = 0;
    const auto y = quiet(body)(torch::randn({2}).requires_grad_());
    const support::Autocast on;
    const torch::NoGradGuard no_grad;
    const support::ThreadState before;
    EXPECT_ANY_THROW(torch::autograd::backward({y}, {torch::ones_like(y)}));
    before.expect_unchanged();
  }
}

}  // namespace
