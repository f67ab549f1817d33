// SPDX-License-Identifier: BSD-3-Clause
//
// Backpropagation through a thousand steps of a recurrent cell, in the memory of a few: a loop cut
// into segments, and by the binomial schedule. Prints what each keeps, and how often it runs a
// step.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <utility>
#include <vector>

namespace policy = refrain::policy;
using torch::Tensor;

int main() {
  refrain::count_cpu_memory();
  torch::nn::GRUCell cell(16, 64);
  const auto inputs = torch::randn({1000, 8, 16});
  const auto start = torch::zeros({8, 64});
  int runs = 0;
  // The next state, and an output of each step.
  const auto step = [&runs, cell](const Tensor& state, const Tensor& input) mutable {
    ++runs;
    auto next = cell(input, state);
    return std::pair(next, next.mean());
  };

  Tensor expected;
  refrain::Bytes plain;
  bool good = true;
  fmt::print("{:<13} {:>12} {:>12} {:>6}\n", "policy", "peak", "of plain", "runs");
  for (const policy::AnyPolicy& how :
       {policy::none(), policy::segments(50), policy::binomial(12), policy::binomial(5)}) {
    cell->zero_grad();
    runs = 0;
    const auto before = refrain::memory().live;
    refrain::reset_peak();
    {
      const auto [state, outputs] = refrain::checkpoint_loop(step, start, inputs, how);
      (state.square().sum() + torch::stack(outputs).sum()).backward();
    }
    const auto peak = refrain::memory().peak - before;
    const auto gradient = cell->weight_hh.grad().clone();
    if (!expected.defined()) {
      expected = gradient;
      plain = peak;
    }
    good = good && gradient.equal(expected);
    fmt::print("{:<13} {:>12} {:>10.1f} % {:>6}\n", how, refrain::to_string(peak),
               100 * (peak / plain), runs);
  }
  fmt::print("gradients: {}\n", good ? "equal bit for bit" : "DIFFERENT");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
