// SPDX-License-Identifier: BSD-3-Clause
//
// One switch for a whole model whose blocks are Checkpoint<...>: off, the first half, all blocks of
// one kind, blocks by name. The model is built once; its settings can be read back.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace policy = refrain::policy;

struct AttentionImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    const auto parts = qkv(x).chunk(3, -1);
    return x + torch::softmax(parts[0].matmul(parts[1].transpose(-2, -1)) / 8, -1).matmul(parts[2]);
  }
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(64, 192));
};
TORCH_MODULE(Attention);

struct MlpImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 64));
};
TORCH_MODULE(Mlp);

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    for (int i = 0; i < 4; ++i) {
      const auto name = std::to_string(i);
      attentions.push_back(register_module(name + "_attention", refrain::checkpoint(Attention())));
      mlps.push_back(register_module(name + "_mlp", refrain::checkpoint(Mlp())));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < mlps.size(); ++i) x = mlps[i](attentions[i](x));
    return x;
  }
  std::vector<refrain::Checkpoint<Attention>> attentions;
  std::vector<refrain::Checkpoint<Mlp>> mlps;
};
TORCH_MODULE(Model);

int main() {
  refrain::count_cpu_memory();
  Model model;
  const auto x = torch::randn({8, 128, 64}, torch::requires_grad());
  torch::Tensor expected;
  bool equal = true;

  const auto measure = [&](const std::string& setting) {
    const auto before = refrain::memory().live;
    const auto loss = model(x).square().sum();
    const auto kept = refrain::memory().live - before;
    const auto gradient = torch::autograd::grad({loss}, {x}).front();
    if (!expected.defined()) expected = gradient;
    equal = equal && gradient.equal(expected);
    fmt::print("{:<34} keeps {:>10} for backward\n", setting, refrain::to_string(kept));
    return kept;
  };

  refrain::disable(model);
  const auto plain = measure("disable(model)");
  refrain::enable(model, policy::first(4));
  measure("enable(model, first(4))");
  refrain::enable(model, policy::only<Attention>());
  measure("enable(model, only<Attention>())");
  fmt::print("\nwhat is set now:\n");
  for (const auto& region : refrain::regions(model)) fmt::print("  {}\n", region);
  fmt::print("\n");
  refrain::enable(model);
  const auto all = measure("enable(model)");

  // A name that fits nothing is an error, not a silent nothing.
  bool refused = false;
  try {
    refrain::enable(model, policy::matching("*.atention"));
  } catch (const refrain::OptionError& error) {
    refused = true;
    fmt::print("\n{}\n", error.what());
  }
  return equal && refused && all * 4 < plain ? EXIT_SUCCESS : EXIT_FAILURE;
}
