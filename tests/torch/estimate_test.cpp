// SPDX-License-Identifier: BSD-3-Clause
#include "support/seeded.hpp"
#include <refrain/estimate/block.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/chain.hpp>
#include <refrain/estimate/model.hpp>
#include <refrain/estimate/workload.hpp>
#include <refrain/profiler.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace {

namespace estimate = refrain::estimate;
namespace nn = torch::nn;
using estimate::Attention;
using estimate::BlockShape;
using estimate::Norm;
using estimate::Workload;
using refrain::Bytes;
using torch::Tensor;

constexpr double kEpsilon = 1e-6;

/// RMSNorm as a kernel does it: keeps its input and a number a token.
struct FusedRms : torch::autograd::Function<FusedRms> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& weight) {
    const Tensor scale = torch::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + kEpsilon);
    context->save_for_backward({x, weight, scale});
    return x * scale * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor normed = saved[0] * saved[2];
    const Tensor scaled = gradients[0] * saved[1];
    return {(scaled - normed * (scaled * normed).mean(-1, /*keepdim=*/true)) * saved[2],
            (gradients[0] * normed).sum(c10::IntArrayRef({0, 1}))};
  }
};

struct RmsNormImpl : nn::Module {
  RmsNormImpl(std::int64_t width, Norm kind)
      : how(kind), weight(register_parameter("weight", torch::ones({width}))) {}

  Tensor forward(const Tensor& x) {
    if (how == Norm::Rms) return FusedRms::apply(x, weight);
    const Tensor wide = x.to(torch::kFloat);
    const Tensor scale = torch::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + kEpsilon);
    return (wide * scale).to(x.scalar_type()) * weight;
  }

  Norm how;
  Tensor weight;
};
TORCH_MODULE(RmsNorm);

/// A block as its shape and its workload say, written as users do.
struct RealBlockImpl : nn::Module {
  RealBlockImpl(const BlockShape& given, const Workload& load)
      : shape(given),
        work(load),
        norm1(norm("norm1")),
        norm2(norm("norm2")),
        qkv(linear("qkv", shape.width, shape.width + 2 * shape.kv_width())),
        out(linear("out", shape.width, shape.width)),
        up(linear("up", shape.width, shape.ffn)),
        down(linear("down", shape.ffn, shape.width)),
        residual(register_module("residual", nn::Dropout(work.residual_dropout))),
        future(torch::ones({work.sequence, work.sequence}, torch::kBool).triu(1)) {
    if (shape.mlp == estimate::Mlp::SwiGlu) gate = linear("gate", shape.width, shape.ffn);
  }

  nn::Linear linear(const char* name, std::int64_t from, std::int64_t to) {
    return register_module(
        name, nn::Linear(nn::LinearOptions(from, to).bias(shape.bias == estimate::Bias::With)));
  }
  nn::AnyModule norm(const char* name) {
    if (shape.norm != Norm::Layer)
      return nn::AnyModule(register_module(name, RmsNorm(shape.width, shape.norm)));
    return nn::AnyModule(register_module(name, nn::LayerNorm(nn::LayerNormOptions({shape.width}))));
  }

  Tensor forward(Tensor x) {
    x = x + residual(attend(norm1.forward(x)));
    return x + residual(feed(norm2.forward(x)));
  }

  Tensor feed(const Tensor& x) {
    if (shape.mlp == estimate::Mlp::Gelu) return down(torch::gelu(up(x)));
    return down(torch::silu(gate(x)) * up(x));
  }

  Tensor attend(const Tensor& x) {
    auto parts = qkv(x).split({shape.width, shape.kv_width(), shape.kv_width()}, -1);
    for (Tensor& part : parts)
      part = part.view({x.size(0), x.size(1), -1, shape.width / shape.heads}).transpose(1, 2);
    const Tensor result = work.attention == Attention::Flash ? flash(parts[0], parts[1], parts[2])
                                                             : plain(parts[0], parts[1], parts[2]);
    return out(result.transpose(1, 2).reshape({x.size(0), x.size(1), shape.width}));
  }

  Tensor flash(const Tensor& q, const Tensor& k, const Tensor& v) const {
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, {},
                                            /*enable_gqa=*/shape.kv_heads != shape.heads);
  }

  Tensor plain(const Tensor& q, Tensor k, Tensor v) const {
    if (shape.kv_heads != shape.heads) {
      k = k.repeat_interleave(shape.heads / shape.kv_heads, 1);
      v = v.repeat_interleave(shape.heads / shape.kv_heads, 1);
    }
    constexpr double kNever = -1e4;
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
    const Tensor scores = (q.matmul(k.transpose(-2, -1)) * scale).masked_fill(future, kNever);
    Tensor weights = torch::softmax(scores, -1);
    if (work.attention_dropout > 0)
      weights = torch::dropout(weights, work.attention_dropout, is_training());
    return weights.matmul(v);
  }

  BlockShape shape;
  Workload work;
  nn::AnyModule norm1, norm2;
  nn::Linear qkv, out, up, down, gate{nullptr};
  nn::Dropout residual;
  Tensor future;  ///< True where a token would look ahead.
};
TORCH_MODULE(RealBlock);

refrain::ProfileOptions quick() { return refrain::ProfileOptions().repeats(1).seconds(0); }

refrain::StageCost measured(const BlockShape& shape, const Workload& work) {
  const auto type = work.element == Bytes(4) ? torch::kFloat : torch::kBFloat16;
  std::vector<RealBlock> blocks = {RealBlock(shape, work)};
  blocks[0]->to(type);
  const auto x = torch::randn({work.batch, work.sequence, shape.width}, type).requires_grad_();
  return refrain::profile(quick(), blocks, x).chain[0];
}

BlockShape eager(BlockShape shape) {
  shape.norm = Norm::EagerRms;
  return shape;
}

struct EstimatedCase {
  std::string name;
  BlockShape shape;
  Attention attention = Attention::Plain;
  double dropout = 0;
  std::int64_t element = 4;

  friend void PrintTo(const EstimatedCase& given, std::ostream* out) { *out << given.name; }
};

class EstimatedBlock : public testing::TestWithParam<std::tuple<EstimatedCase, std::int64_t>> {
 protected:
  void SetUp() override { torch::manual_seed(20); }

  static const BlockShape& shape() { return std::get<EstimatedCase>(GetParam()).shape; }
  static Workload work() {
    const auto& [given, sequence] = GetParam();
    Workload work{.batch = 2, .sequence = sequence};
    work.element = Bytes(given.element);
    work.mask = work.element;  // LibTorch's CPU makes dropout of several operations
    work.attention = given.attention;
    work.attention_dropout = given.dropout;
    work.residual_dropout = given.dropout;
    return work;
  }
};

TEST_P(EstimatedBlock, KeepsWhatIsMeasuredWithinOnePercent) {
  const auto expected = static_cast<double>(estimate::block_bytes(shape(), work()).kept().count());
  const auto real = static_cast<double>(measured(shape(), work()).plain.saved);
  EXPECT_NEAR(real / expected, 1, 0.01);
}

TEST_P(EstimatedBlock, HasTheParametersThatItHas) {
  std::int64_t count = 0;
  for (const Tensor& parameter : RealBlock(shape(), work())->parameters())
    count += parameter.numel();
  EXPECT_EQ(estimate::parameters(shape()), count);
}

TEST_P(EstimatedBlock, PeaksNoHigherThanTheChainSays) {
  estimate::ModelShape model{"one", shape(), 1, 100};
  estimate::Training training;
  training.gradient = work().element;
  const refrain::StageCost bound = estimate::chain_of(model, work(), training)[1];
  const refrain::StageCost real = measured(shape(), work());
  EXPECT_EQ(bound.gradients, real.gradients);
  // Of the CPU's bf16 kernels, in some versions: as much for any length, and no estimate's matter.
  const std::int64_t workspace = work().element == Bytes(2) ? 64 * 1024 : 0;
  for (const auto& [name, is, most] :
       {std::tuple{"forward", real.plain.forward_peak, bound.plain.forward_peak},
        std::tuple{"without grad", real.nograd_peak, bound.nograd_peak},
        std::tuple{"backward", real.plain.backward_peak, bound.plain.backward_peak},
        std::tuple{"with gradient", real.plain.backward_peak_with_gradient,
                   bound.plain.backward_peak_with_gradient},
        std::tuple{"replay", real.plain.replay_peak, bound.plain.replay_peak}}) {
    EXPECT_LE(is, most + workspace) << name;
    EXPECT_GE(static_cast<double>(is), 0.4 * static_cast<double>(most)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Blocks, EstimatedBlock,
    testing::Combine(
        testing::Values(
            EstimatedCase{"GptPlain", estimate::gpt_block(128, 8)},
            EstimatedCase{"GptPlainDropout", estimate::gpt_block(128, 8), Attention::Plain, 0.1},
            EstimatedCase{"GptFlash", estimate::gpt_block(128, 8), Attention::Flash},
            EstimatedCase{"GptBFloat16", estimate::gpt_block(128, 8), Attention::Plain, 0.1, 2},
            EstimatedCase{"LlamaPlain", estimate::llama_block(128, 8, 2, 384)},
            EstimatedCase{"LlamaPlainDropout", estimate::llama_block(128, 8, 2, 384),
                          Attention::Plain, 0.1},
            EstimatedCase{"LlamaFlash", estimate::llama_block(128, 8, 2, 384), Attention::Flash},
            EstimatedCase{"LlamaOfAllHeads", estimate::llama_block(128, 8, 8, 384),
                          Attention::Flash},
            EstimatedCase{"LlamaEager", eager(estimate::llama_block(128, 8, 2, 384)),
                          Attention::Flash},
            EstimatedCase{"LlamaEagerPlain", eager(estimate::llama_block(128, 8, 2, 384))},
            EstimatedCase{"LlamaEagerBFloat16", eager(estimate::llama_block(128, 8, 2, 384)),
                          Attention::Flash, 0, 2}),
        testing::Values(64, 128)),
    [](const auto& parameter) {
      return std::get<0>(parameter.param).name + std::to_string(std::get<1>(parameter.param));
    });

class EstimatedHead : public support::Seeded {};

TEST_F(EstimatedHead, AndItsLossAreWhatIsMeasured) {
  constexpr std::int64_t kTokens = 4096;
  const Workload work{.batch = 2, .sequence = 64, .element = Bytes(4)};
  const estimate::ModelShape model{"one", estimate::gpt_block(128, 8), 1, kTokens};
  nn::Sequential layers(RealBlock(model.block, work), nn::LayerNorm(nn::LayerNormOptions({128})),
                        nn::Linear(nn::LinearOptions(128, kTokens).bias(false)));
  const auto targets = torch::randint(kTokens, {128});
  const auto options = quick().loss([targets](const Tensor& logits) {
    return nn::functional::cross_entropy(logits.view({-1, kTokens}), targets);
  });
  const auto x = torch::randn({2, 64, 128}).requires_grad_();
  const refrain::Profile profile = refrain::profile(options, layers, x);
  ASSERT_EQ(profile.chain.size(), 3);
  const auto expected = estimate::head_bytes(model, work);
  const auto kept = static_cast<double>((expected.norm + expected.logits).count());
  EXPECT_NEAR(
      static_cast<double>(profile.chain[1].plain.saved + profile.chain[2].plain.saved) / kept, 1,
      0.01);
  EXPECT_NEAR(Bytes(profile.chain.loss_peak) / expected.loss, 1, 0.01);
  EXPECT_EQ(profile.chain.held, expected.logits.count() + 4);  // and the loss itself
}

TEST_F(EstimatedHead, RmsNormOfTheCpuIsAnEagerOne) {
  const Workload work{.batch = 2, .sequence = 64, .element = Bytes(4)};
  const std::vector<nn::Functional> layers(1, nn::Functional([](const Tensor& x) {
                                             static const Tensor weight =
                                                 torch::ones({128}).requires_grad_();
                                             return at::rms_norm(x, {128}, weight, kEpsilon);
                                           }));
  const auto x = torch::randn({2, 64, 128}).requires_grad_();
  const auto shape = eager(estimate::llama_block(128, 8, 8, 384));
  const double kept = static_cast<double>(estimate::detail::norm_bytes(shape, work).count());
  EXPECT_NEAR(static_cast<double>(refrain::profile(quick(), layers, x).chain[0].plain.saved) / kept,
              1, 0.01);
}

}  // namespace
