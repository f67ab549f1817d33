// SPDX-License-Identifier: BSD-3-Clause
//
// Backpropagation through a thousand steps of a recurrent cell, in the memory of a few: a loop cut
// into segments, and by the binomial schedule; and a loop that goes on until its state is at rest.
// Prints what each keeps, and how often it runs a step.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

namespace policy = refrain::policy;
using torch::Tensor;

namespace {

/// Compares policies on one loop: `run` gives a loss and counts its steps.
bool compare(const char* what, const std::vector<policy::AnyPolicy>& policies,
             const Tensor& parameter, int& runs,
             const std::function<Tensor(const policy::AnyPolicy&)>& run) {
  Tensor expected;
  refrain::Bytes plain;
  bool good = true;
  fmt::print("\n{:<32} {:>12} {:>12} {:>6}\n", what, "peak", "of plain", "runs");
  for (const auto& how : policies) {
    parameter.mutable_grad().reset();
    runs = 0;
    const auto before = refrain::memory().live;
    refrain::reset_peak();
    run(how).backward();
    const auto peak = refrain::memory().peak - before;
    const auto gradient = parameter.grad().clone();
    if (!expected.defined()) {
      expected = gradient;
      plain = peak;
    }
    good = good && gradient.equal(expected);
    fmt::print("{:<32} {:>12} {:>10.1f} % {:>6}\n", how, refrain::to_string(peak),
               100 * (peak / plain), runs);
  }
  return good;
}

}  // namespace

int main() {
  refrain::count_cpu_memory();
  int runs = 0;

  // As many steps as there are inputs; each gives the next state, and an output.
  torch::nn::GRUCell cell(16, 64);
  const auto inputs = torch::randn({1000, 8, 16});
  const auto start = torch::zeros({8, 64});
  const auto step = [&runs, cell](const Tensor& state, const Tensor& input) mutable {
    ++runs;
    auto next = cell(input, state);
    return std::pair(next, next.mean());
  };
  bool good =
      compare("a thousand steps",
              {policy::none(), policy::segments(50), policy::binomial(12), policy::binomial(5)},
              cell->weight_hh, runs, [&](const policy::AnyPolicy& how) {
                const auto [state, outputs] = refrain::checkpoint_loop(step, start, inputs, how);
                return state.square().sum() + torch::stack(outputs).sum();
              });

  // As many steps as it takes: nobody knows ahead.
  const auto pull = torch::randn({64, 64}).div_(64).requires_grad_();
  const auto settle = [&runs, pull](const Tensor& x) {
    ++runs;
    return 0.99 * x + 0.01 * torch::tanh(x.mm(pull));
  };
  const auto moves = [](const Tensor& x) { return x.abs().max().item<float>() > 0.01; };
  const auto far = torch::ones({8, 64});
  good = compare("until it is at rest",
                 {policy::none(), policy::every(25),
                  policy::nested(policy::every(64), policy::binomial(6))},
                 pull, runs,
                 [&](const policy::AnyPolicy& how) {
                   return refrain::checkpoint_loop(settle, far, moves, how).sum();
                 }) &&
         good;

  fmt::print("\ngradients: {}\n", good ? "equal bit for bit" : "DIFFERENT");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
