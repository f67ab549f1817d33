// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>

namespace support {

/// A pre-norm transformer block with unfused attention and dropout.
struct TransformerBlockImpl : torch::nn::Module {
  TransformerBlockImpl(std::int64_t width, std::int64_t head_count, double drop)
      : heads(head_count),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        dropout(register_module("dropout", torch::nn::Dropout(drop))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + dropout(attend(norm1(x)));
    return x + down(torch::gelu(up(norm2(x))));
  }

  torch::Tensor attend(const torch::Tensor& x) {
    const auto batch = x.size(0);
    const auto length = x.size(1);
    const auto width = x.size(2);
    const auto parts =
        qkv(x).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
    const auto scores = torch::softmax(parts[0].matmul(parts[1].transpose(-2, -1)) * scale, -1);
    return out(scores.matmul(parts[2]).transpose(1, 2).reshape({batch, length, width}));
  }

  std::int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(TransformerBlock);

/// Two convolutions with BatchNorm and a residual; `stride` halves the image and doubles the
/// channels.
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride)
      : conv1(register_module("conv1", conv(from, to, 3, stride))),
        conv2(register_module("conv2", conv(to, to, 3, 1))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(to))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(to))) {
    if (from != to) shortcut = register_module("shortcut", conv(from, to, 1, stride));
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut.is_empty() ? x : shortcut(x)));
  }

  static torch::nn::Conv2d conv(std::int64_t from, std::int64_t to, std::int64_t size,
                                std::int64_t stride) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::BatchNorm2d norm1, norm2;
  torch::nn::Conv2d shortcut{nullptr};
};
TORCH_MODULE(ResidualBlock);

/// One recurrent layer: sequences in, sequences out.
struct LstmLayerImpl : torch::nn::Module {
  LstmLayerImpl(std::int64_t from, std::int64_t to)
      : lstm(register_module(
            "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(from, to).batch_first(true)))) {}
  torch::Tensor forward(torch::Tensor x) { return std::get<0>(lstm(x)); }

  torch::nn::LSTM lstm;
};
TORCH_MODULE(LstmLayer);

/// Embedding, blocks, head: token ids in, logits out.
inline torch::nn::Sequential gpt(std::int64_t blocks, std::int64_t width, std::int64_t tokens,
                                 double drop = 0.0) {
  torch::nn::Sequential layers;
  layers->push_back("tokens", torch::nn::Embedding(tokens, width));
  for (std::int64_t i = 0; i < blocks; ++i) layers->push_back(TransformerBlock(width, 4, drop));
  layers->push_back("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  layers->push_back("head", torch::nn::Linear(width, tokens));
  return layers;
}

/// Images in, class scores out. Layers that give back their input's memory, and some between which
/// nobody saves anything.
inline torch::nn::Sequential resnet(std::int64_t channels, std::int64_t classes) {
  torch::nn::Sequential layers;
  layers->push_back(ResidualBlockImpl::conv(3, channels, 3, 1));
  layers->push_back(torch::nn::BatchNorm2d(channels));
  layers->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
  layers->push_back(ResidualBlock(channels, channels, 1));
  layers->push_back(ResidualBlock(channels, channels, 1));
  layers->push_back(ResidualBlock(channels, 2 * channels, 2));
  layers->push_back(ResidualBlock(2 * channels, 2 * channels, 1));
  layers->push_back(ResidualBlock(2 * channels, 4 * channels, 2));
  layers->push_back(ResidualBlock(4 * channels, 4 * channels, 1));
  layers->push_back(torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions(1)));
  layers->push_back(torch::nn::Flatten());
  layers->push_back(torch::nn::Linear(4 * channels, classes));
  return layers;
}

}  // namespace support
