// SPDX-License-Identifier: BSD-3-Clause
//
// A model whose blocks are checkpointed still runs out of memory. One recorded step says where the
// peak is: in the head, which no region covers. With a region there too the peak falls, and the
// difference of the two ledgers shows what that took.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down(torch::gelu(up(torch::dropout(norm(x), 0.1, is_training()))));
  }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({128})));
  nn::Linear up = register_module("up", nn::Linear(128, 512));
  nn::Linear down = register_module("down", nn::Linear(512, 128));
};
TORCH_MODULE(Block);

/// Scores of 4000 words, and how wrong they are.
struct HeadImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& words) {
    return torch::cross_entropy_loss(scores(norm(x)).flatten(0, 1), words);
  }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({128})));
  nn::Linear scores = register_module("scores", nn::Linear(128, 4000));
};
TORCH_MODULE(Head);

int main() {
  refrain::count_cpu_memory();
  std::vector<Block> blocks(6);
  Head head;
  auto trunk = refrain::checkpoint(blocks, refrain::policy::every(2),
                                   refrain::CheckpointOptions().name("blocks"));
  const auto x = torch::randn({8, 64, 128});
  const auto words = torch::randint(4000, {8 * 64});

  const auto step = [&](auto& last) {
    const auto loss = last(trunk(x), words);
    loss.backward();
  };
  step(head);  // makes the gradients

  const auto before = refrain::record([&] { step(head); });
  fmt::print("{}\n\n", before);

  // A piece of the batch at a time: only its scores live at once.
  auto piece = refrain::checkpoint(head, refrain::CheckpointOptions().name("head"));
  const auto in_pieces = [&](const torch::Tensor& h, const torch::Tensor& all) {
    torch::Tensor loss = torch::zeros({});
    for (int i = 0; i < 8; ++i)
      loss = loss + piece(h.slice(0, i, i + 1), all.slice(0, 64 * i, 64 * (i + 1))) / 8;
    return loss;
  };
  const auto after = refrain::record([&] { step(in_pieces); });
  fmt::print("{}\n\n{}\n", after, refrain::diff(before, after));

  const bool owned_by_the_head =
      before.peak()->phase == refrain::Phase::Loss ||
      (before.peak()->phase == refrain::Phase::Backward && before.peak()->call < 0);
  const bool fell = after.peak()->live.count() < before.peak()->live.count() * 3 / 4;
  return owned_by_the_head && fell ? EXIT_SUCCESS : EXIT_FAILURE;
}
