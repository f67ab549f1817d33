// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/estimate/block.hpp>
#include <refrain/estimate/check.hpp>
#include <refrain/estimate/workload.hpp>

#include <cstdint>

namespace refrain::estimate {

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
///     estimate::Workload work{.batch = 4, .sequence = 2048};
///     auto bytes = estimate::block_bytes(estimate::gpt_block(4096, 32), work);
///     fmt::print("{} of {} are attention\n", bytes.attention, bytes.kept());
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

}  // namespace refrain::estimate
