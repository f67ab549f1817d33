// SPDX-License-Identifier: BSD-3-Clause
//
// A model that must fit: measured, planned, run once to see that it holds, and trained within the
// budget. Prints the profile, the plan, and the peak before training and in training.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>

using namespace refrain::literals;
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }

  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({128})));
  nn::Linear up = register_module("up", nn::Linear(128, 512));
  nn::Linear down = register_module("down", nn::Linear(512, 128));
};
TORCH_MODULE(Block);

int main() {
  refrain::count_cpu_memory();
  nn::Sequential layers(nn::Linear(32, 128));
  for (int i = 0; i < 8; ++i) layers->push_back(Block());
  layers->push_back(nn::Linear(128, 10));
  const auto x = torch::randn({512, 32});
  const auto classes = torch::randint(10, {512});
  const auto loss = [&](const torch::Tensor& scores) {
    return torch::nn::functional::cross_entropy(scores, classes);
  };

  // What the loss is counts: its memory is part of the step.
  const auto options = refrain::ProfileOptions().loss(loss);
  const auto profile = refrain::profile(options, layers, x);
  fmt::print("{}\n\n", profile);

  constexpr refrain::Bytes kBudget = 16_MiB;
  auto fitted = refrain::fit(options, layers, kBudget, x);
  fmt::print("{}\nmeasured {}\n\n", fitted.plan(), fitted.measured_peak());

  refrain::reset_peak();
  for (int step = 0; step < 3; ++step) {
    fitted->zero_grad();
    auto scores = fitted(x);
    loss(scores).backward();
  }
  const auto peak = refrain::memory().peak;
  fmt::print("three steps of training peaked at {}\n\n", peak);

  // A budget that nothing fits is an error that says what would.
  try {
    (void)refrain::plan(profile, 1_MiB);
  } catch (const refrain::BudgetError& error) {
    fmt::print("{}\n", error.what());
  }
  return peak <= kBudget ? EXIT_SUCCESS : EXIT_FAILURE;
}
