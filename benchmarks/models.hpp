// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/checkpoint.hpp>

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace bench {

using torch::Tensor;

/// A pre-norm transformer block; no dropout, so that matrix products are most of the time.
struct GptBlockImpl : torch::nn::Module {
  GptBlockImpl(std::int64_t width, std::int64_t head_count) : heads(head_count) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  Tensor forward(Tensor x) {
    x = x + out(attend(norm1(x)));
    return x + down(torch::gelu(up(norm2(x))));
  }
  Tensor attend(const Tensor& x) {
    const auto parts = qkv(x)
                           .view({x.size(0), x.size(1), 3, heads, x.size(2) / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const auto mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return mixed.transpose(1, 2).reshape(x.sizes());
  }
  std::int64_t heads;
  torch::nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
  torch::nn::Linear qkv = nullptr, out = nullptr, up = nullptr, down = nullptr;
};
TORCH_MODULE(GptBlock);

/// Two linear layers and a residual.
struct MlpBlockImpl : torch::nn::Module {
  explicit MlpBlockImpl(std::int64_t width) {
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  Tensor forward(Tensor x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up = nullptr, down = nullptr;
};
TORCH_MODULE(MlpBlock);

/// Two convolutions with batch norms, and a residual.
struct ResBlockImpl : torch::nn::Module {
  explicit ResBlockImpl(std::int64_t channels) {
    const auto options = torch::nn::Conv2dOptions(channels, channels, 3).padding(1).bias(false);
    conv1 = register_module("conv1", torch::nn::Conv2d(options));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(channels));
    conv2 = register_module("conv2", torch::nn::Conv2d(options));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(channels));
  }
  Tensor forward(Tensor x) {
    const auto inside = torch::relu(norm1(conv1(x)));
    return torch::relu(norm2(conv2(inside)) + x);
  }
  torch::nn::Conv2d conv1 = nullptr, conv2 = nullptr;
  torch::nn::BatchNorm2d norm1 = nullptr, norm2 = nullptr;
};
TORCH_MODULE(ResBlock);

/// One LSTM layer over the whole sequence.
struct LstmBlockImpl : torch::nn::Module {
  explicit LstmBlockImpl(std::int64_t width) {
    lstm = register_module("lstm", torch::nn::LSTM(width, width));
  }
  Tensor forward(Tensor x) { return std::get<0>(lstm(x)); }
  torch::nn::LSTM lstm = nullptr;
};
TORCH_MODULE(LstmBlock);

/// A stack of equal blocks and an input for it.
template <class Block>
struct Model {
  std::string name;
  std::vector<Block> blocks;
  Tensor input;
  Tensor seed;  // the gradient of the result

  [[nodiscard]] std::vector<Tensor> parameters() const {
    std::vector<Tensor> all;
    for (const auto& block : blocks) {
      for (const auto& parameter : block->parameters()) all.push_back(parameter);
    }
    return all;
  }
};

template <class Block, class... Arguments>
Model<Block> stack_of(std::string name, int count, at::IntArrayRef shape,
                      const Arguments&... arguments) {
  torch::manual_seed(1);
  Model<Block> model{std::move(name), {}, {}, {}};
  for (int i = 0; i < count; ++i) model.blocks.push_back(Block(arguments...));
  model.input = torch::randn(shape).requires_grad_();
  model.seed = torch::randn(shape);
  // Gradients have their place before the first step, as in any later one.
  for (const auto& parameter : model.parameters())
    parameter.mutable_grad() = torch::zeros_like(parameter);
  return model;
}

/// What the tables show, with the sizes that peers/tradeoff.py repeats.
inline auto gpt() { return stack_of<GptBlock>("gpt", 24, {4, 256, 256}, 256, 8); }
inline auto small_gpt() { return stack_of<GptBlock>("small gpt", 16, {2, 128, 192}, 192, 6); }
inline auto mlp() { return stack_of<MlpBlock>("mlp", 16, {2048, 128}, 128); }
inline auto resnet() { return stack_of<ResBlock>("resnet", 8, {8, 16, 32, 32}, 16); }
inline auto lstm() { return stack_of<LstmBlock>("lstm", 6, {64, 16, 128}, 128); }

}  // namespace bench
