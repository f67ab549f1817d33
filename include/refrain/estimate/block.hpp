// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/estimate/check.hpp>
#include <refrain/estimate/workload.hpp>

#include <cstdint>

namespace refrain::estimate {

enum class Mlp { Gelu, SwiGlu };
enum class Norm {
  Layer,
  Rms,       ///< In one kernel, as `at::rms_norm` on CUDA.
  EagerRms,  ///< Of single operations, which keep the result before its weight too, and below 4
             ///< bytes an element a copy of the input in 4 instead of the input.
};
enum class Bias { With, Without };

/// A pre-norm transformer block: attention and an MLP, each on a residual branch.
struct BlockShape {
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< Of keys and values, where there are fewer.
  std::int64_t ffn = 0;       ///< Width of the MLP's middle.
  Mlp mlp = Mlp::Gelu;
  Norm norm = Norm::Layer;
  Bias bias = Bias::With;

  /// Width of the keys, and of the values.
  [[nodiscard]] std::int64_t kv_width() const { return width / heads * kv_heads; }
};

/// With LayerNorm, biases and a GELU MLP, four times as wide by default.
[[nodiscard]] inline BlockShape gpt_block(std::int64_t width, std::int64_t heads) {
  return {.width = width, .heads = heads, .kv_heads = heads, .ffn = 4 * width};
}

/// With RMSNorm, without biases, with a SwiGLU MLP.
[[nodiscard]] inline BlockShape llama_block(std::int64_t width, std::int64_t heads,
                                            std::int64_t kv_heads, std::int64_t ffn) {
  return {width, heads, kv_heads, ffn, Mlp::SwiGlu, Norm::Rms, Bias::Without};
}

namespace detail {

inline void check(const BlockShape& block, std::int64_t tensor_parallel = 1) {
  at_least_one("the width", block.width);
  at_least_one("the number of heads", block.heads);
  at_least_one("the number of key and value heads", block.kv_heads);
  at_least_one("the feed-forward width", block.ffn);
  at_least_one("the tensor parallel degree", tensor_parallel);
  divides("a width of", block.width, "heads", block.heads);
  divides("heads:", block.heads, "key and value heads", block.kv_heads);
  divides("key and value heads:", block.kv_heads, "tensor parallel parts", tensor_parallel);
  divides("a feed-forward width of", block.ffn, "tensor parallel parts", tensor_parallel);
}

}  // namespace detail

/// Of one device where tensor parallelism cuts the block.
[[nodiscard]] inline std::int64_t parameters(const BlockShape& block,
                                             std::int64_t tensor_parallel = 1) {
  detail::check(block, tensor_parallel);
  const std::int64_t d = block.width;
  const std::int64_t inner = 2 * d + 2 * block.kv_width();  // query, output, key, value
  const std::int64_t ups = block.mlp == Mlp::SwiGlu ? 2 : 1;
  const std::int64_t matrices = d * (inner + (ups + 1) * block.ffn) / tensor_parallel;
  const std::int64_t norms = 2 * d * (block.norm == Norm::Layer ? 2 : 1);
  if (block.bias == Bias::Without) return matrices + norms;
  return matrices + norms + (inner - d + ups * block.ffn) / tensor_parallel + 2 * d;
}

/// What one block leaves behind for its backward, by where it comes from.
///
/// The mean and the deviation of a norm, a few bytes a token, are left out.
struct BlockBytes {
  Bytes boundary;          ///< The input. The block before it leaves it behind.
  Bytes norms;             ///< Results of both, which the matrices read, and eager ones' extras.
  Bytes qkv;               ///< Queries, keys, values.
  Bytes attention;         ///< The core: softmax, its dropout and mask; or the log-sum-exp.
  Bytes attention_output;  ///< What the output projection reads.
  Bytes middle;            ///< The sum after attention, which the second norm reads.
  Bytes mlp;               ///< GELU: its input and result. SwiGLU: gate, its SiLU, up, product.
  Bytes masks;             ///< Of the dropout on either branch.
  Bytes output;            ///< The next block's boundary.

  [[nodiscard]] Bytes kept() const {
    return norms + qkv + attention + attention_output + middle + mlp + masks + output;
  }
  friend bool operator==(const BlockBytes&, const BlockBytes&) = default;
};

namespace detail {

inline constexpr std::int64_t kFloat = 4;  // bytes

/// Whether a norm works on a copy of its input, and lets go of the input.
[[nodiscard]] inline bool norm_copies(const BlockShape& block, const Workload& work) {
  return block.norm == Norm::EagerRms && work.element < Bytes(kFloat);
}

/// What one norm keeps beside its input: its result, and what an eager one makes on the way.
[[nodiscard]] inline Bytes norm_bytes(const BlockShape& block, const Workload& work) {
  std::int64_t a_channel = work.element.count();
  if (block.norm == Norm::EagerRms) a_channel *= 2;
  if (norm_copies(block, work)) a_channel += kFloat;
  return Bytes(product({work.tokens(), block.width, a_channel}) / work.between());
}

/// Bytes of one matrix of scores, for all heads of a device.
[[nodiscard]] inline Bytes score_bytes(const BlockShape& block, const Workload& work) {
  return Bytes(product(
      {work.tokens(), block.heads / work.tensor_parallel, work.sequence, work.element.count()}));
}

[[nodiscard]] inline Bytes core_bytes(const BlockShape& block, const Workload& work) {
  if (work.attention == Attention::Flash)
    return Bytes(product({work.tokens(), block.heads / work.tensor_parallel, kFloat}));
  const Bytes scores = score_bytes(block, work);
  if (work.attention_dropout == 0) return scores;
  return 2 * scores + scores.count() / work.element.count() * work.mask;
}

}  // namespace detail

/// `16 B S D + B H S²` elements for a GPT block with plain attention, `6 + 2κ + 4r` a token and
/// channel for a Llama-like one with a share κ of key and value heads and an MLP r times as wide.
///
///     auto bytes = estimate::block_bytes(estimate::gpt_block(4096, 32), {.batch = 4, .sequence =
///     2048}); fmt::print("{} of {} are attention\n", bytes.attention, bytes.kept());
///
/// Throws `OptionError` for sizes that are not positive, or that do not divide.
/// Source: Korthikanti and others, "Reducing Activation Recomputation in Large Transformer Models",
/// for 2-byte elements with dropout; the rest is checked against `profile()`.
[[nodiscard]] inline BlockBytes block_bytes(const BlockShape& block, const Workload& work) {
  detail::check(work);
  detail::check(block, work.tensor_parallel);
  const std::int64_t parts = work.tensor_parallel;
  const auto wide = [&work](std::int64_t channels, std::int64_t devices) {
    return Bytes(detail::product({work.tokens(), channels, work.element.count()}) / devices);
  };
  const Bytes between = wide(block.width, work.between());
  // Plain attention multiplies matrices of all heads, copies of the keys and values.
  const std::int64_t kv = work.attention == Attention::Plain ? block.width : block.kv_width();
  BlockBytes bytes;
  bytes.boundary = between;
  bytes.norms = 2 * detail::norm_bytes(block, work);
  bytes.qkv = wide(block.width + 2 * kv, parts);
  bytes.attention = detail::core_bytes(block, work);
  bytes.attention_output = wide(block.width, parts);
  if (!detail::norm_copies(block, work)) bytes.middle = between;
  bytes.mlp = wide((block.mlp == Mlp::SwiGlu ? 4 : 2) * block.ffn, parts);
  if (work.residual_dropout > 0)
    bytes.masks = 2 * (between.count() / work.element.count() * work.mask);
  bytes.output = between;
  return bytes;
}

/// Multiplications and additions of a block's matrix products, on one device.
struct BlockFlops {
  double forward = 0;
  double backward = 0;
  double attention = 0;  ///< Of the forward, the products with scores.
  double tail = 0;       ///< What a replay that ends with the block leaves out by stopping early.
};

/// A fused kernel leaves out the causal half of the scores, and makes them again in its backward.
/// The tail is the last projection, unless a dropout after it has a mask to make.
[[nodiscard]] inline BlockFlops block_flops(const BlockShape& block, const Workload& work) {
  detail::check(work);
  detail::check(block, work.tensor_parallel);
  const double a_token =
      2 * static_cast<double>(work.tokens()) / static_cast<double>(work.tensor_parallel);
  const auto d = static_cast<double>(block.width);
  const auto ffn = static_cast<double>(block.ffn);
  const bool flash = work.attention == Attention::Flash;
  BlockFlops flops;
  flops.attention = a_token * d * static_cast<double>(work.sequence) * (flash ? 1 : 2);
  const double projections = a_token * d * (2 * d + 2 * static_cast<double>(block.kv_width()));
  const double mlp = a_token * d * ffn * (block.mlp == Mlp::SwiGlu ? 3 : 2);
  flops.forward = flops.attention + projections + mlp;
  constexpr double kFlashBackward = 2.5;
  flops.backward = 2 * (projections + mlp) + (flash ? kFlashBackward : 2) * flops.attention;
  if (work.residual_dropout == 0) flops.tail = a_token * d * ffn;
  return flops;
}

}  // namespace refrain::estimate
