// SPDX-License-Identifier: BSD-3-Clause
#include "support/live_bytes.hpp"
#include "support/routes.hpp"
#include "support/run_counter.hpp"
#include <refrain/checkpoint_loop.hpp>
#include <refrain/planner/binomial.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace {

namespace nn = torch::nn;
namespace policy = refrain::policy;
using torch::Tensor;

struct Traced {
  std::vector<Tensor> tensors;
  int runs = 0;
};

/// The last state, an output of each step, and all gradients.
Traced gru(const policy::AnyPolicy& how, std::int64_t steps,
           const refrain::CheckpointOptions& options = {}) {
  torch::manual_seed(11);
  nn::GRUCell cell(3, 4);
  nn::Dropout dropout(0.3);
  const auto inputs = torch::randn({steps, 2, 3}).requires_grad_();
  const auto start = torch::randn({2, 4}).requires_grad_();
  int runs = 0;
  auto [state, outputs] = refrain::checkpoint_loop(
      [cell, dropout, &runs](const Tensor& h, const Tensor& x) mutable {
        ++runs;
        auto next = cell(x, h);
        return std::pair(next, dropout(next).sum(1));
      },
      start, inputs, how, options);
  (state.sum() + torch::stack(outputs).pow(2).sum()).backward();
  Traced traced{{state, torch::stack(outputs), start.grad(), inputs.grad()}, runs};
  for (const auto& parameter : cell->parameters()) traced.tensors.push_back(parameter.grad());
  traced.tensors.push_back(torch::rand({3}));
  return traced;
}

class Loop : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Loop, support::kBothRoutes, support::route_name);

TEST_P(Loop, ChangesNothing) {
  const Traced plain = gru(policy::none(), 12);
  for (const auto& how : {policy::segments(3), policy::every(5), policy::binary(),
                          policy::binomial(2), policy::all(policy::LastSegment::Replay)}) {
    const Traced quiet = gru(how, 12, options());
    ASSERT_EQ(quiet.tensors.size(), plain.tensors.size());
    for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
      // The function route adds a parameter's gradients up in another order.
      const bool same = GetParam() == refrain::Route::Hooks
                            ? torch::equal(quiet.tensors[i], plain.tensors[i])
                            : torch::allclose(quiet.tensors[i], plain.tensors[i]);
      EXPECT_TRUE(same) << how.describe() << " " << i;
    }
    EXPECT_GT(quiet.runs, plain.runs) << how.describe();
  }
}

TEST(CheckpointLoop, BinomialRunsAsOftenAsItMust) {
  for (const std::int64_t slots : {1, 2, 3, 5}) {
    const auto extra = refrain::planner::binomial_extra_forwards(30, slots);
    EXPECT_EQ(gru(policy::binomial(slots), 30).runs, 30 + extra) << slots;
  }
}

/// Leaves so many bytes behind, forward.
std::int64_t kept_by(const policy::AnyPolicy& how, int* runs) {
  const auto weight = torch::randn({32, 32}).requires_grad_();
  const auto inputs = torch::zeros({1000, 1});
  const auto start = torch::randn({8, 32}).requires_grad_();
  const auto before = support::live_bytes();
  auto state = refrain::checkpoint_loop(
      [weight, runs](const Tensor& h, const Tensor& x) {
        ++*runs;
        return torch::tanh(torch::relu(h.mm(weight)) + x);
      },
      start, inputs, how);
  const auto kept = support::live_bytes() - before;
  state.sum().backward();
  EXPECT_TRUE(start.grad().defined());
  return kept;
}

TEST(CheckpointLoop, AThousandStepsKeepATwentiethOfTheirStatesForOneMoreForward) {
  int plain_runs = 0;
  int quiet_runs = 0;
  const auto plain = kept_by(policy::none(), &plain_runs);
  const auto quiet = kept_by(policy::segments(50), &quiet_runs);
  EXPECT_EQ(plain_runs, 1000);
  EXPECT_LE(quiet_runs, 2000);
  // 50 states, and of the last segment all 20 steps' activations.
  EXPECT_LE(quiet * 20, plain);
}

TEST(CheckpointLoop, TakesStatesAndInputsOfAnyKind) {
  using State = std::tuple<Tensor, Tensor>;
  nn::LSTMCell cell(3, 4);
  std::vector<std::pair<Tensor, double>> inputs;
  for (int i = 0; i < 6; ++i) inputs.emplace_back(torch::randn({2, 3}), 0.5 * i);
  const auto step = [cell](const State& state, const std::pair<Tensor, double>& x) mutable {
    return cell(x.first * x.second, state);
  };
  const State start(torch::zeros({2, 4}), torch::zeros({2, 4}));
  const State plain = refrain::checkpoint_loop(step, start, inputs, policy::none());
  const State quiet = refrain::checkpoint_loop(step, start, inputs, policy::every(2));
  EXPECT_TRUE(torch::equal(std::get<0>(plain), std::get<0>(quiet)));
  std::get<0>(quiet).sum().backward();
  EXPECT_TRUE(cell->weight_hh.grad().defined());
}

TEST(CheckpointLoop, OfNoStepsGivesTheStateBack) {
  const auto start = torch::randn({2});
  const std::vector<Tensor> none;
  const auto end = refrain::checkpoint_loop([](const Tensor& h, const Tensor& x) { return h + x; },
                                            start, none, policy::every(2));
  EXPECT_TRUE(end.is_same(start));
}

TEST(CheckpointLoop, WithoutGradRunsEachStepOnce) {
  const torch::NoGradGuard no_grad;
  int runs = 0;
  (void)refrain::checkpoint_loop(
      [&runs](const Tensor& h, const Tensor& x) {
        ++runs;
        return h + x;
      },
      torch::zeros({2}), torch::ones({9, 2}), policy::binomial(2));
  EXPECT_EQ(runs, 9);
}

TEST(CheckpointLoop, AStepThatChangesItselfIsReplayedAsItWas) {
  const auto run = [](const policy::AnyPolicy& how) {
    torch::manual_seed(4);
    const auto w = torch::randn({4}).requires_grad_();
    (void)refrain::checkpoint_loop(
        [w, t = 0](const Tensor& h, const Tensor& x) mutable {
          ++t;
          return (h * w).sin() * (0.1 * t) + x;
        },
        torch::ones({4}), torch::ones({10, 4}), how)
        .sum()
        .backward();
    return w.grad();
  };
  EXPECT_TRUE(torch::equal(run(policy::none()), run(policy::segments(4))));
  EXPECT_TRUE(torch::equal(run(policy::none()), run(policy::binary())));
}

TEST(CheckpointLoop, RefusesToNestTooDeeply) {
  const auto step = [](const Tensor& h, const Tensor& x) { return h + x; };
  EXPECT_THROW((void)refrain::checkpoint_loop(step, torch::zeros({2}), torch::ones({2000, 2}),
                                              policy::binomial(1)),
               refrain::PlanError);
}

}  // namespace
