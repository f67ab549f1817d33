// SPDX-License-Identifier: BSD-3-Clause
//
// An accelerator's memory waits on the host, as much of it as the host may hold, and beyond that on
// a disk. Without an accelerator the blocks' numbers wait in 8 bits each, in a quarter of the room.
#include <refrain/refrain.hpp>
#include <refrain/tier/counted.hpp>
#include <refrain/tier/disk.hpp>
#include <refrain/tier/host.hpp>
#include <refrain/tier/limited.hpp>
#include <refrain/tier/quantized.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

using namespace refrain::literals;
namespace nn = torch::nn;
namespace tier = refrain::tier;

int main() {
  refrain::count_cpu_memory();
  const bool gpu = torch::cuda::is_available();
  const torch::Device device = gpu ? torch::kCUDA : torch::kCPU;
  const auto scratch = std::filesystem::temp_directory_path().string();

  const tier::Counted waits =
      gpu ? tier::counted(tier::limited(tier::host(), 16_MiB, tier::disk(scratch)))
          : tier::counted(tier::quantized(tier::host(), 8));

  torch::manual_seed(1);
  nn::Sequential block(nn::Linear(256, 1024), nn::GELU(), nn::Linear(1024, 256), nn::Tanh());
  block->to(device);
  auto moved = refrain::offload(block, waits);

  const auto step = [&](auto& stack) {
    block->zero_grad();
    const auto before = refrain::memory(device).live;
    torch::Tensor h = torch::ones({2048, 256}, device);
    for (int i = 0; i < 4; ++i) h = stack->forward(h);
    const auto held = refrain::memory(device).live - before;
    h.mean().backward();
    fmt::print("held for backward: {}\n", held);
    return std::pair(held, block->parameters()[0].grad().clone());
  };
  const auto [plain_held, plain] = step(block);
  const auto [moved_held, gradient] = step(moved);
  fmt::print("went to {}: {} in {} tensors\n", waits, waits.counts().bytes_moved,
             waits.counts().moved);

  const double error = ((gradient - plain).norm() / plain.norm()).item<double>();
  fmt::print("gradients differ by {:.2g} of their size\n", error);
  const bool exact = torch::equal(gradient, plain);
  return moved_held < plain_held / 2 && (gpu ? exact : error < 0.01) ? EXIT_SUCCESS : EXIT_FAILURE;
}
