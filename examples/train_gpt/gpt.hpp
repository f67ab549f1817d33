// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/refrain.hpp>

#include <torch/nn/functional/dropout.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace train_gpt {

struct Shape {
  std::int64_t vocabulary;
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
  std::int64_t seq;
  double dropout;
};

/// A pre-norm transformer block: causal attention, then an MLP of four times the width.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Shape& shape)
      : heads_(shape.heads),
        dropout_(shape.dropout),
        norm1_(register_module("norm1", torch::nn::LayerNorm(over(shape.width)))),
        qkv_(register_module("qkv", torch::nn::Linear(shape.width, 3 * shape.width))),
        out_(register_module("out", torch::nn::Linear(shape.width, shape.width))),
        norm2_(register_module("norm2", torch::nn::LayerNorm(over(shape.width)))),
        up_(register_module("up", torch::nn::Linear(shape.width, 4 * shape.width))),
        down_(register_module("down", torch::nn::Linear(4 * shape.width, shape.width))) {}

  torch::Tensor forward(torch::Tensor x) {
    if (refrain::replaying()) ++replays;
    x = x + drop(out_(attend(norm1_(x))));
    return x + drop(down_(torch::gelu(up_(norm2_(x)))));
  }

  std::int64_t replays = 0;  // how often this block was run again for backward

 private:
  static torch::nn::LayerNormOptions over(std::int64_t width) {
    return torch::nn::LayerNormOptions({width});
  }

  torch::Tensor attend(const torch::Tensor& x) {
    const auto batch = x.size(0);
    const auto seq = x.size(1);
    const auto width = x.size(2);
    const auto parts =
        qkv_(x).view({batch, seq, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                            /*is_causal=*/true)
        .transpose(1, 2)
        .reshape({batch, seq, width});
  }

  torch::Tensor drop(const torch::Tensor& x) { return torch::dropout(x, dropout_, is_training()); }

  std::int64_t heads_;
  double dropout_;
  torch::nn::LayerNorm norm1_;
  torch::nn::Linear qkv_, out_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear up_, down_;
};
TORCH_MODULE(Block);

using Stack = refrain::CheckpointLayers<Block>;

/// Characters in, for each place a score for every character that may come next out.
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const Shape& shape)
      : dropout_(shape.dropout),
        token_(register_module("token", torch::nn::Embedding(shape.vocabulary, shape.width))),
        position_(register_module("position", torch::nn::Embedding(shape.seq, shape.width))),
        blocks_(blocks_of(shape)),
        norm_(register_module("norm",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
        head_(register_module("head", torch::nn::Linear(shape.width, shape.vocabulary))) {
    const auto list = register_module("blocks", torch::nn::ModuleList());
    for (const auto& block : blocks_) list->push_back(block);
    initialize();
  }

  /// The blocks as a stack that forgets what `policy` says. This and `use` are all that
  /// checkpointing asks of a model.
  Stack stack_of(const refrain::policy::AnyPolicy& policy,
                 refrain::CheckpointOptions options = {}) const {
    return refrain::checkpoint(blocks_, policy, std::move(options));
  }

  void use(Stack other) { stack_ = std::move(other); }

  torch::Tensor forward(const torch::Tensor& ids) { return scores(stack_(embedded(ids))); }

  /// What goes into the blocks, and what follows them.
  torch::Tensor embedded(const torch::Tensor& ids) {
    const auto places = torch::arange(ids.size(1), ids.options());
    return torch::dropout(token_(ids) + position_(places), dropout_, is_training());
  }
  torch::Tensor scores(const torch::Tensor& x) { return head_(norm_(x)); }

  const std::vector<Block>& blocks() const { return blocks_; }

  std::int64_t replays() const {
    std::int64_t sum = 0;
    for (const auto& block : blocks_) sum += block->replays;
    return sum;
  }

 private:
  static std::vector<Block> blocks_of(const Shape& shape) {
    std::vector<Block> blocks;
    for (std::int64_t i = 0; i < shape.layers; ++i) blocks.emplace_back(shape);
    return blocks;
  }

  // GPT-2's way: small weights, smaller still where a branch joins the stream. The characters
  // themselves keep LibTorch's larger ones, which lets a short training get somewhere.
  void initialize() {
    const torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      const std::string& name = item.key();
      if (item.value().dim() < 2 || name == "token.weight") continue;
      const bool joins = name.ends_with("out.weight") || name.ends_with("down.weight");
      const auto branches = joins ? 2.0 * static_cast<double>(blocks_.size()) : 1.0;
      torch::nn::init::normal_(item.value(), 0.0, 0.02 / std::sqrt(branches));
    }
  }

  double dropout_;
  torch::nn::Embedding token_, position_;
  std::vector<Block> blocks_;
  Stack stack_ = stack_of(refrain::policy::none());
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Gpt);

}  // namespace train_gpt
