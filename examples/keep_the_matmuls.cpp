// SPDX-License-Identifier: BSD-3-Clause
//
// A block that forgets what is cheap to make anew and keeps what is dear: norms and activations are
// replayed, matrix products and attention are not. Prints what each way keeps and how long a step
// takes, and checks that every gradient is the plain run's.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace nn = torch::nn;
namespace policy = refrain::policy;

struct BlockImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads =
        qkv(norm1(x)).view({x.size(0), x.size(1), 3, 4, 32}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]);
    const auto h = x + out(mixed.transpose(1, 2).reshape(x.sizes()));
    return h + down(torch::gelu(up(norm2(h))));
  }

  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({128})));
  nn::Linear qkv = register_module("qkv", nn::Linear(128, 384));
  nn::Linear out = register_module("out", nn::Linear(128, 128));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({128})));
  nn::Linear up = register_module("up", nn::Linear(128, 512));
  nn::Linear down = register_module("down", nn::Linear(512, 128));
};
TORCH_MODULE(Block);

int main() {
  refrain::count_cpu_memory();
  Block block;
  const auto x = torch::randn({4, 128, 128}).requires_grad_();

  struct Way {
    std::string name;
    std::function<torch::Tensor(torch::Tensor)> call;
  };
  std::vector<Way> ways{{"plain", [=](const torch::Tensor& t) mutable { return block(t); }},
                        {"replay all", refrain::checkpoint(block)}};
  for (const auto& keep : {policy::keep_matmuls(), policy::keep_attention(),
                           policy::keep_matmuls() + policy::keep_attention()}) {
    ways.push_back({keep.describe(), refrain::checkpoint(block, keep)});
  }

  std::vector<torch::Tensor> expected;
  bool equal = true;
  fmt::print("{:<36} {:>10} {:>10}\n", "what", "keeps", "step");
  for (auto& [name, call] : ways) {
    block->zero_grad();
    const auto before = refrain::memory().live;
    auto y = call(x);
    const auto kept = refrain::memory().live - before - refrain::Bytes(y.nbytes());
    y.square().mean().backward();
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : block->parameters()) gradients.push_back(parameter.grad().clone());
    if (expected.empty()) expected = gradients;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      equal = equal && torch::equal(gradients[i], expected[i]);

    const auto begin = std::chrono::steady_clock::now();
    constexpr int kSteps = 5;
    for (int step = 0; step < kSteps; ++step) call(x).square().mean().backward();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    fmt::print("{:<36} {:>10} {:>7.1f} ms\n", name, fmt::to_string(kept), took.count() / kSteps);
  }
  fmt::print("gradients are {}\n", equal ? "equal, bit for bit" : "NOT equal");
  return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}
