// SPDX-License-Identifier: BSD-3-Clause
//
// verify() runs a checkpointed thing and its plain self from the same state and compares all that
// they leave behind. Shows the report for a block that is fine and for one that draws its own
// random numbers.
#include <refrain/refrain.hpp>
#include <refrain/verify.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <random>

struct GoodImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    return torch::dropout(torch::relu(norm(linear(x))), /*p=*/0.2, is_training());
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(64, 64));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(64));
};
TORCH_MODULE(Good);

// LibTorch knows nothing of this engine, so a replay scales by another number than the first run
// did.
struct BadImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    std::uniform_real_distribution<double> uniform(0.5, 1.5);
    return linear(x * torch::full({1}, uniform(engine))).sin();
  }
  std::mt19937 engine{1};
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(64, 64));
};
TORCH_MODULE(Bad);

int main() {
  refrain::count_cpu_memory();
  const auto x = torch::randn({32, 64}, torch::requires_grad());

  const auto good = refrain::verify(refrain::checkpoint(Good()), x);
  fmt::print("a block with dropout and batch norm:\n{}\n\n", good);

  const auto bad = refrain::verify(refrain::checkpoint(Bad()), x);
  fmt::print("a block with a random engine of its own:\n{}\n", bad);

  return good.ok() && !bad.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
