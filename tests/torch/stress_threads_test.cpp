// SPDX-License-Identifier: BSD-3-Clause
// Two threads, 200 rounds, one module: kept operators, kept code, value checks and ledgers
// at the same time.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/keep.hpp>
#include <refrain/record.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace {

namespace policy = refrain::policy;
using torch::Tensor;

class Stress : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Stress, support::kBothRoutes, support::route_name);

/// A router that runs once, and two layers around it.
struct RoutedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor h = torch::gelu(mlp(x));
    const Tensor best = refrain::keep("router", [&] {
      ++routed;
      return h.detach().argmax(1, /*keepdim=*/true);
    });
    return h + h.gather(1, best) * scale;
  }
  std::atomic<int> routed = 0;
  support::Mlp mlp = register_module("mlp", support::Mlp(16));
  Tensor scale = register_parameter("scale", torch::full({16}, 0.5));
};
TORCH_MODULE(Routed);

TEST_P(Stress, TwoThreadsKeepCheckAndRecordForTwoHundredRounds) {
  constexpr int kRounds = 200;
  constexpr int kThreads = 2;
  Routed module;
  auto region =
      refrain::checkpoint(module, options()
                                      .keep(policy::keep_matmuls() + policy::keep_named({"router"}))
                                      .check(refrain::Check::Values, 3));
  std::vector<Tensor> inputs;
  std::vector<Tensor> expected;
  for (int i = 0; i < kThreads; ++i) {
    inputs.push_back(torch::randn({8, 16}));
    const auto x = inputs.back().clone().requires_grad_();
    expected.push_back(torch::autograd::grad({module(x).pow(2).sum()}, {x})[0]);
  }
  module->routed = 0;
  std::atomic<int> wrong = 0;
  std::atomic<int> incomplete = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      at::set_num_threads(1);
      auto mine = region;
      try {
        for (int round = 0; round < kRounds; ++round) {
          const auto x = inputs[i].clone().requires_grad_();
          Tensor gradient;
          const auto step = [&] {
            const Tensor loss = mine(x).pow(2).sum();
            gradient = torch::autograd::grad({loss}, {x})[0];
          };
          if (round % 2 == 0) {
            const auto ledger = refrain::record(step);
            if (ledger.calls.size() != 1 || ledger.calls[0].replays.size() != 1) ++incomplete;
          } else {
            step();
          }
          if (!torch::equal(gradient, expected[i])) ++wrong;
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << i << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(incomplete, 0);
  EXPECT_EQ(module->routed, kThreads * kRounds) << "the router ran once a call";
}

}  // namespace
