// SPDX-License-Identifier: BSD-3-Clause
//
// A Sequential cut by a policy: segments of four layers are replayed, so only every fourth layer's
// input waits for backward. Prints what each policy cuts, and what it costs and saves.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

namespace policy = refrain::policy;

struct LayerImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    ++runs;
    return torch::gelu(linear(x));
  }

  int runs = 0;
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(256, 256));
};
TORCH_MODULE(Layer);

int main() {
  refrain::count_cpu_memory();
  constexpr int kLayers = 16;
  std::vector<Layer> layers(kLayers);
  torch::nn::Sequential plain;
  for (const auto& layer : layers) plain->push_back(layer);
  const auto x = torch::randn({512, 256}, torch::requires_grad());

  // A policy of one's own is a struct with these two functions.
  struct Odd {
    refrain::Segmentation cut(const refrain::Chain& chain) const {
      return policy::replay_where(chain, [](auto i) { return i % 2 == 1; });
    }
    std::string describe() const { return "odd"; }
  };

  std::vector<refrain::Bytes> peaks;
  torch::Tensor expected;
  bool equal = true;
  fmt::print("{:<11} {:>10} {:>5}  {}\n", "policy", "peak", "runs", "cut (* is replayed)");
  for (const policy::AnyPolicy& how : {policy::none(), policy::AnyPolicy(Odd()), policy::every(4),
                                       policy::sqrt_n(), policy::all()}) {
    auto stack = refrain::checkpoint(plain, how);
    stack->zero_grad();
    for (auto layer : layers) layer->runs = 0;  // holders are cheap to copy

    const auto before = refrain::memory().live;
    refrain::reset_peak();
    const auto gradient = torch::autograd::grad({stack(x).square().sum()}, {x}).front();
    peaks.push_back(refrain::memory().peak - before);

    int runs = 0;
    for (const auto& layer : layers) runs += layer->runs;
    fmt::print("{:<11} {:>10} {:>5}  {}\n", how, refrain::to_string(peaks.back()), runs,
               stack->cut());
    if (!expected.defined()) expected = gradient;
    equal = equal && gradient.equal(expected);
  }
  fmt::print("gradients: {}\n", equal ? "equal bit for bit" : "DIFFERENT");
  return equal && peaks[2] * 2 < peaks[0] ? EXIT_SUCCESS : EXIT_FAILURE;
}
