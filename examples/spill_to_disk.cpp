// SPDX-License-Identifier: BSD-3-Clause
//
// What checkpointed blocks keep, their inputs, waits on a disk: a step then needs one block's
// memory, however many there are. Or nothing is run twice, and all that the blocks save waits
// there.
#include <refrain/refrain.hpp>
#include <refrain/tier/disk.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

using namespace refrain::literals;
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({256})));
  nn::Linear up = register_module("up", nn::Linear(256, 1024));
  nn::Linear down = register_module("down", nn::Linear(1024, 256));
};
TORCH_MODULE(Block);

struct Step {
  refrain::Bytes peak;
  std::vector<torch::Tensor> gradients;
};

template <class Stack>
Step train(const std::string& name, Stack& stack, std::vector<Block>& blocks) {
  for (Block& block : blocks) block->zero_grad();
  const auto before = refrain::memory().live;
  refrain::reset_peak();
  torch::Tensor h = torch::ones({4096, 256});
  for (auto& block : stack) h = block(h);
  h.square().mean().backward();
  Step step{refrain::memory().peak - before, {}};
  for (const Block& block : blocks) {
    for (const auto& p : block->parameters()) step.gradients.push_back(p.grad().clone());
  }
  fmt::print("{:<28} {:>10} at the peak\n", name, step.peak);
  return step;
}

int main() {
  refrain::count_cpu_memory();
  torch::manual_seed(1);
  std::vector<Block> blocks;
  for (int i = 0; i < 16; ++i) blocks.emplace_back(Block());

  const auto scratch = std::filesystem::temp_directory_path().string();
  const refrain::tier::Disk disk = refrain::tier::disk(scratch, {.on_the_way = 4_MiB});

  std::vector<refrain::Checkpoint<Block>> replayed;
  std::vector<refrain::Checkpoint<Block>> replayed_from_disk;
  std::vector<refrain::Checkpoint<Block>> moved;
  for (const Block& block : blocks) {
    replayed.push_back(refrain::checkpoint(block));
    replayed_from_disk.push_back(
        refrain::checkpoint(block, refrain::CheckpointOptions().tier(disk)));
    moved.push_back(refrain::offload(block, disk));
  }

  const Step plain = train("plain", blocks, blocks);
  const Step a = train("replayed", replayed, blocks);
  const Step b = train("replayed, inputs on disk", replayed_from_disk, blocks);
  const Step c = train("moved to disk", moved, blocks);
  fmt::print("written to the disk: {}\n", disk.bytes_written());

  const auto same = [&plain](const Step& step) {
    for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
      if (!torch::equal(step.gradients[i], plain.gradients[i])) return false;
    }
    return true;
  };
  const bool holds = same(a) && same(b) && same(c) && a.peak < plain.peak && b.peak < a.peak &&
                     c.peak < plain.peak / 2;
  return holds ? EXIT_SUCCESS : EXIT_FAILURE;
}
