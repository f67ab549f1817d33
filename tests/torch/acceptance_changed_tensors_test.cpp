// SPDX-License-Identifier: BSD-3-Clause
// K8: what a replay would read must not change between forward and backward. A16 and siblings.
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/thread_state.hpp"

namespace {

using support::expect_says;
using torch::Tensor;

class Changed : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Changed, support::kBothRoutes, support::route_name);

void change(Tensor tensor) {
  const torch::NoGradGuard no_grad;
  tensor.add_(1);
}

/// Runs backward of `y` and expects the complaint.
void expect_complaint(const Tensor& y) {
  expect_says<refrain::Error>({"refrain: ", "changed"}, [&] { y.sum().backward(); });
}

TEST_P(Changed, A16_AChangedParameterIsAnError) {
  auto linear = torch::nn::Linear(4, 4);
  const auto y = quiet(linear)(torch::randn({2, 4}).requires_grad_());
  change(linear->weight);
  expect_complaint(y);
}

TEST_P(Changed, A16_ItSaysWhereAndWhat) {
  auto linear = torch::nn::Linear(4, 4);
  const auto y = refrain::checkpoint(
      linear, options().name("layers.2"))(torch::randn({2, 4}).requires_grad_());
  change(linear->bias);
  expect_says<refrain::DivergenceError>({"layers.2", "changed", "float32[4]", "version 1", "2 now"},
                                        [&] { y.sum().backward(); });
}

TEST_P(Changed, AChangedInputIsAnError) {
  auto x = torch::randn({4});
  const auto w = torch::randn({4}).requires_grad_();
  const auto y = quiet([](Tensor h, Tensor v) { return (h * v).exp(); })(x, w);
  change(x);
  expect_complaint(y);
}

TEST_P(Changed, AnInputIsCalledOneAlsoWhereAutogradAsksForItFirst) {
  const auto x = torch::randn({4}).requires_grad_();
  auto t = x * 1;
  const auto y = quiet([](Tensor h) { return h.sin(); })(t);  // saves its argument as it is
  t.add_(1);
  expect_says<refrain::DivergenceError>({"tensor argument 0", "version 0 then, 1 now"},
                                        [&] { y.sum().backward(); });
}

TEST_P(Changed, OtherMemoryForAParameterIsAnError) {
  auto linear = torch::nn::Linear(4, 4);
  const auto y = quiet(linear)(torch::randn({2, 4}).requires_grad_());
  linear->weight.set_data(torch::ones({4, 4}));
  expect_says<refrain::DivergenceError>({"got other memory", "float32[4, 4]", "set_data"},
                                        [&] { y.sum().backward(); });
}

TEST_P(Changed, AnInputChangedThroughAViewIsAnError) {
  auto x = torch::randn({4});
  const auto w = torch::randn({4}).requires_grad_();
  const auto y = quiet([](Tensor h, Tensor v) { return (h * v).exp(); })(x, w);
  change(x.slice(0, 1, 2));
  expect_complaint(y);
}

TEST_P(Changed, AnInputThatOnlyTheReplayReadsIsAnError) {
  // Plain autograd saved exp's result and would never look at x again.
  auto x = torch::randn({4});
  const auto w = torch::randn({4}).requires_grad_();
  const auto y = quiet([](Tensor h, Tensor v) { return (h + v).exp(); })(x, w);
  change(x);
  expect_complaint(y);
}

TEST_P(Changed, AParameterThatOnlyTheReplayReadsIsAnError) {
  auto block = support::Mlp(4);  // nobody saves a bias
  const auto y = quiet(block)(torch::randn({2, 4}).requires_grad_());
  change(block->fc1->bias);
  expect_complaint(y);
}

TEST_P(Changed, AParameterUnderAutocastIsAnError) {
  auto linear = torch::nn::Linear(4, 4);  // autograd saves the cast, whose version never moves
  Tensor y;
  {
    const support::Autocast on;
    y = quiet(linear)(torch::randn({2, 4}).requires_grad_());
  }
  change(linear->weight);
  expect_complaint(y);
}

TEST_P(Changed, AnInputChangedBeforeASecondPassIsAnError) {
  auto x = torch::randn({4});
  const auto w = torch::randn({4}).requires_grad_();
  const auto y = quiet([](Tensor h, Tensor v) { return (h * v).exp(); })(x, w);
  y.sum().backward({}, /*retain_graph=*/true);
  change(x);
  expect_complaint(y);
}

TEST_P(Changed, TheStateIsAsBeforeAfterTheComplaint) {
  auto linear = torch::nn::Linear(4, 4);
  auto layer = quiet(linear);
  const auto x = torch::randn({2, 4}).requires_grad_();
  const auto y = layer(x);
  change(linear->weight);
  const support::ThreadState before;
  expect_complaint(y);
  before.expect_unchanged();
  EXPECT_NO_THROW(layer(x).sum().backward());
}

TEST_P(Changed, ACapturedTensorThatAnOpSavedIsAnError) {
  auto b = torch::randn({4});
  const auto y = quiet([b](Tensor t) { return (t * b).exp(); })(torch::randn({4}).requires_grad_());
  change(b);
  expect_complaint(y);
}

TEST_P(Changed, ACapturedTensorThatNoOpSavedIsNeverSilentlyWrong) {
  const auto x = torch::randn({4}).requires_grad_();
  auto b = torch::randn({4});
  const auto y = quiet([b](Tensor t) { return (t + b).exp(); })(x);
  change(b);
  try {
    y.sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), y.detach())) << "exp is its own derivative";
  } catch (const refrain::Error& error) {
    EXPECT_NE(std::string(error.what()).find("changed"), std::string::npos) << error.what();
  }
}

}  // namespace
