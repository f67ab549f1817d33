// SPDX-License-Identifier: BSD-3-Clause
//
// A model with every mistake that is easily made with regions, and what the linter says of each:
// frozen parts, a block that draws numbers of its own, one that was switched off, a last block that
// gains nothing. Then the model as it should be.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = torch::gelu(up(x));
    // Refrain cannot know this source of random numbers: a replay draws others.
    if (noisy) h = h * (1 + 0.1 * noise(engine));
    return x + down(h);
  }
  bool noisy = false;
  std::mt19937 engine;
  std::normal_distribution<double> noise;
  nn::Linear up = register_module("up", nn::Linear(64, 256));
  nn::Linear down = register_module("down", nn::Linear(256, 64));
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  explicit NetImpl(int count) {
    for (int i = 0; i < count; ++i)
      blocks.push_back(register_module(fmt::format("block{}", i), refrain::checkpoint(Block())));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<refrain::Checkpoint<Block>> blocks;
  nn::Linear head = register_module("head", nn::Linear(64, 10));
};
TORCH_MODULE(Net);

int main() {
  refrain::count_cpu_memory();
  const auto x = torch::randn({32, 16, 64});
  Net net(5);

  net->blocks[2]->inner()->noisy = true;
  const auto wrong = refrain::lint(net, x);
  fmt::print("With numbers of its own:\n{}\n\n", to_string(wrong));

  net->blocks[2]->inner()->noisy = false;
  for (auto& parameter : net->blocks[0]->parameters()) parameter.requires_grad_(false);
  net->blocks[1]->set_enabled(false);
  const auto wasteful = refrain::lint(net, x);
  fmt::print("With regions that gain nothing:\n{}\n\n", to_string(wasteful));

  net->blocks[0]->set_enabled(false);  // frozen: nothing to forget
  net->blocks[1]->set_enabled(true);
  net->blocks[4]->set_enabled(false);  // the last: replayed at once
  const auto good = refrain::lint(net, x);
  fmt::print("As it should be:\n{}\n", to_string(good));

  const auto has = [](const std::vector<refrain::Finding>& findings, refrain::Rule rule) {
    for (const refrain::Finding& finding : findings) {
      if (finding.rule == rule) return true;
    }
    return false;
  };
  const bool told = has(wrong, refrain::Rule::Diverges) &&
                    has(wasteful, refrain::Rule::NoGradient) &&
                    has(wasteful, refrain::Rule::NotRun) &&
                    has(wasteful, refrain::Rule::OnlyCosts) && !refrain::any_warning(good);
  return told ? EXIT_SUCCESS : EXIT_FAILURE;
}
