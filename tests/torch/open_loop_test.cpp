// SPDX-License-Identifier: BSD-3-Clause
// Loops whose length nobody knows ahead.
#include "support/live_bytes.hpp"
#include "support/messages.hpp"
#include "support/routes.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/checkpoint_loop.hpp>
#include <refrain/policy.hpp>

#include <torch/torch.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace nn = torch::nn;
namespace policy = refrain::policy;
using torch::Tensor;

/// What a loop gave, and how often its parts ran.
struct Ended {
  std::vector<Tensor> tensors;
  int steps = 0;
  int asked = 0;
};

void expect_equal(const Ended& got, const Ended& expected, bool exactly, const std::string& what) {
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    // The function route adds a parameter's gradients up in another order.
    const bool same = exactly ? torch::equal(got.tensors[i], expected.tensors[i])
                              : torch::allclose(got.tensors[i], expected.tensors[i]);
    EXPECT_TRUE(same) << what << ", tensor " << i;
  }
  EXPECT_EQ(got.asked, expected.asked) << what;
}

std::vector<policy::AnyPolicy> every_kind() {
  using policy::LastSegment;
  return {policy::all(),
          policy::every(3),
          policy::every(100),
          policy::one_in(2),
          policy::nested(policy::every(4), policy::binomial(2)),
          policy::nested(policy::every(6), policy::nested(policy::every(3), policy::all())),
          policy::nested(policy::every(5, LastSegment::Replay), policy::segments(2))};
}

/// Reads inputs as from a file: until there are none.
Ended read_all(const policy::AnyPolicy& how, std::int64_t length,
               const refrain::CheckpointOptions& options = {}) {
  torch::manual_seed(5);
  nn::GRUCell cell(3, 4);
  nn::Dropout dropout(0.3);
  const bool tracked = options.route() == refrain::Route::Hooks;
  const auto inputs = torch::randn({length + 1, 2, 3}).requires_grad_(tracked);
  const auto start = torch::randn({2, 4}).requires_grad_();
  Ended ended;
  auto [state, outputs] = refrain::checkpoint_loop(
      [cell, dropout, &ended](const Tensor& h, const Tensor& x) mutable {
        ++ended.steps;
        auto next = cell(x, h);
        return std::pair(next, dropout(next).sum(1));
      },
      start,
      [&ended, inputs, length]() -> std::optional<Tensor> {
        const int at = ended.asked++;
        if (at == length) return std::nullopt;
        return inputs[at] * 2;
      },
      how, options);
  auto loss = state.sum();
  for (const auto& output : outputs) loss = loss + output.pow(2).sum();
  loss.backward();
  EXPECT_EQ(static_cast<std::int64_t>(outputs.size()), length);
  ended.tensors = {state, loss, start.grad()};
  if (tracked && length > 0) ended.tensors.push_back(inputs.grad());
  for (const auto& parameter : cell->parameters()) {
    if (length > 0) ended.tensors.push_back(parameter.grad());
  }
  ended.tensors.push_back(torch::rand({3}));
  return ended;
}

/// Halves a vector until it is short.
Ended shrink(const policy::AnyPolicy& how, const refrain::CheckpointOptions& options = {}) {
  torch::manual_seed(6);
  const auto weight = torch::randn({4, 4}).mul(0.3).requires_grad_();
  const auto start = torch::randn({4}).requires_grad_();
  Ended ended;
  auto end = refrain::checkpoint_loop(
      [weight, &ended](const Tensor& x) {
        ++ended.steps;
        return 0.8 * x + 0.1 * torch::tanh(weight.mv(x));
      },
      start,
      [&ended](const Tensor& x) {
        ++ended.asked;
        return x.norm().item<float>() > 1e-2;
      },
      how, options);
  end.sum().backward();
  ended.tensors = {end, weight.grad(), start.grad()};
  return ended;
}

class OpenLoop : public support::OnBothRoutes {
 protected:
  [[nodiscard]] bool exact() const { return GetParam() == refrain::Route::Hooks; }
};
INSTANTIATE_TEST_SUITE_P(Routes, OpenLoop, support::kBothRoutes, support::route_name);

TEST_P(OpenLoop, OfInputsUntilThereAreNoneChangesNothing) {
  for (const std::int64_t length : {0, 1, 4, 5, 12}) {
    const auto plain = read_all(policy::none(), length, options());
    EXPECT_EQ(plain.steps, length);
    EXPECT_EQ(plain.asked, length + 1);
    for (const auto& how : every_kind()) {
      const auto what = fmt::format("{} of {} steps", how, length);
      const auto quiet = read_all(how, length, options());
      expect_equal(quiet, plain, exact(), what);
      EXPECT_GE(quiet.steps, length) << what;
    }
  }
}

TEST_P(OpenLoop, UntilItsStateIsGoodChangesNothing) {
  const auto plain = shrink(policy::none(), options());
  ASSERT_GT(plain.steps, 12);
  for (const auto& how : every_kind()) {
    const auto quiet = shrink(how, options());
    expect_equal(quiet, plain, exact(), how.describe());
    EXPECT_GT(quiet.steps, plain.steps) << how.describe();
  }
}

TEST_P(OpenLoop, ReplaysNothingTwiceUnderEvery) {
  // Whoever does not know the end cannot spare the last segment.
  EXPECT_EQ(read_all(policy::every(4), 12, options()).steps, 24);
  EXPECT_EQ(read_all(policy::all(), 12, options()).steps, 24);
  EXPECT_EQ(read_all(policy::one_in(2), 12, options()).steps, 18);
}

TEST_P(OpenLoop, AsksOnceWhateverNamesARegionKeeps) {
  const auto plain = shrink(policy::none(), options());
  const auto how = policy::nested(policy::every(6), policy::all());
  const auto quiet = shrink(how, options().keep(policy::keep_named({"router"})));
  expect_equal(quiet, plain, exact(), "keep_named");
}

TEST_P(OpenLoop, AStepThatChangesItselfIsReplayedAsItWas) {
  const auto run = [this](const policy::AnyPolicy& how) {
    torch::manual_seed(4);
    const auto w = torch::randn({4}).requires_grad_();
    int left = 11;
    (void)refrain::checkpoint_loop(
        [w, t = 0](const Tensor& h) mutable {
          ++t;
          return (h * w).sin() * (0.1 * t) + 1;
        },
        torch::ones({4}), [&left] { return left-- > 0; }, how, options())
        .sum()
        .backward();
    return w.grad();
  };
  const auto plain = run(policy::none());
  for (const auto& how : every_kind()) {
    const auto quiet = run(how);
    EXPECT_TRUE(exact() ? torch::equal(plain, quiet) : torch::allclose(plain, quiet))
        << how.describe();
  }
}

TEST_P(OpenLoop, IsServedInsideARegionToo) {
  const auto run = [this](bool wrapped, int* asked) {
    torch::manual_seed(9);
    const auto w = torch::rand({4}).mul(0.9).requires_grad_();
    const auto body = [w, asked](const Tensor& x) {
      return refrain::checkpoint_loop([w](const Tensor& h) { return (h * w).sin(); }, x,
                                      [asked](const Tensor& h) {
                                        ++*asked;
                                        return h.abs().max().item<float>() > 1e-2;
                                      },
                                      policy::nested(policy::every(4), policy::all()));
    };
    const auto x = torch::ones({4}).requires_grad_();
    auto y = wrapped ? refrain::checkpoint(body, options())(x) : body(x);
    y.sum().backward();
    return std::pair(w.grad(), x.grad());
  };
  int plain_asked = 0;
  int quiet_asked = 0;
  const auto plain = run(false, &plain_asked);
  const auto quiet = run(true, &quiet_asked);
  EXPECT_TRUE(torch::allclose(plain.first, quiet.first));
  EXPECT_TRUE(torch::allclose(plain.second, quiet.second));
  EXPECT_EQ(quiet_asked, plain_asked);
}

TEST_P(OpenLoop, AnErrorWhileAskingLosesNothing) {
  const auto run = [this](int bad) {
    int at = 0;
    return refrain::checkpoint_loop([](const Tensor& h) { return h.sin(); },
                                    torch::ones({4}).requires_grad_(),
                                    [&at, bad] {
                                      if (at++ == bad) throw std::runtime_error("unreadable");
                                      return at < 9;
                                    },
                                    policy::nested(policy::every(4), policy::all()), options());
  };
  const auto before = support::live_bytes();
  support::expect_says<std::runtime_error>({"unreadable"}, [&] { (void)run(5); });
  EXPECT_EQ(support::live_bytes(), before);
  run(100).sum().backward();
}

TEST(CheckpointOpenLoop, KeepsAStateAPeriodAndTheReplayOfOne) {
  const auto weight = torch::randn({32, 32}).requires_grad_();
  const auto start = torch::randn({8, 32}).requires_grad_();
  const auto peak_of = [&](const policy::AnyPolicy& how) {
    int left = 1000;
    return support::peak_bytes_of([&] {
      refrain::checkpoint_loop(
          [weight](const Tensor& h) { return torch::tanh(torch::relu(h.mm(weight))); }, start,
          [&left] { return left-- > 0; }, how)
          .sum()
          .backward();
    });
  };
  const auto plain = peak_of(policy::none());
  // 32 states between periods, 8 within one, the activations of a step, and gradients.
  const auto state = std::int64_t{8} * 32 * 4;
  const auto quiet = peak_of(policy::nested(policy::every(32), policy::binomial(8)));
  EXPECT_LE(quiet, 60 * state);
  EXPECT_GE(plain, 2000 * state);  // what relu and tanh save
}

TEST(CheckpointOpenLoop, WithoutGradRunsEachStepOnce) {
  const torch::NoGradGuard no_grad;
  int runs = 0;
  int left = 9;
  (void)refrain::checkpoint_loop(
      [&runs](const Tensor& h) {
        ++runs;
        return h + 1;
      },
      torch::zeros({2}), [&left] { return left-- > 0; },
      policy::nested(policy::every(4), policy::all()));
  EXPECT_EQ(runs, 9);
}

TEST(CheckpointOpenLoop, TakesAnyPolicyThatSaysItsPeriod) {
  struct Pairs {
    [[nodiscard]] refrain::Segmentation cut(const refrain::Chain& chain) const {
      return policy::replay_where(chain, [](std::int64_t i) { return i % 3 != 2; });
    }
    [[nodiscard]] std::string describe() const { return "pairs()"; }
    [[nodiscard]] std::int64_t period() const { return 3; }
  };
  const auto plain = read_all(policy::none(), 9);
  const auto quiet = read_all(Pairs{}, 9);
  expect_equal(quiet, plain, true, "pairs()");
  EXPECT_EQ(quiet.steps, 9 + 6);
}

TEST(CheckpointOpenLoop, RefusesAPolicyThatMustKnowTheLength) {
  for (const auto& how : {policy::binomial(8), policy::segments(4), policy::sqrt_n(),
                          policy::nested(policy::binary(), policy::all())}) {
    support::expect_says<refrain::OptionError>(
        {how.describe().c_str(), "must know how many steps there are",
         "policy::nested(policy::every(k), ...)"},
        [&] { (void)shrink(how); });
  }
}

TEST(CheckpointOpenLoop, OnTheFunctionRouteRefusesInputsThatNeedAGradient) {
  const auto x = torch::ones({4}).requires_grad_();
  int at = 0;
  support::expect_says<refrain::Error>({"needs a gradient", "Route::Function"}, [&] {
    (void)refrain::checkpoint_loop(
        [](const Tensor& h, const Tensor& in) { return h * in; }, torch::ones({4}),
        [&]() -> std::optional<Tensor> {
          if (at++ == 6) return std::nullopt;
          return x * 2;
        },
        policy::every(3), refrain::CheckpointOptions().route(refrain::Route::Function));
  });
}

}  // namespace
