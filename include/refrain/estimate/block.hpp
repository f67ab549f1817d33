// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/estimate/check.hpp>

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
  std::int64_t kv_heads = 0;  ///< Of keys and values: as many, or fewer.
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
  const std::int64_t matrices =
      detail::product({d, inner + (ups + 1) * block.ffn}) / tensor_parallel;
  const std::int64_t norms = 2 * d * (block.norm == Norm::Layer ? 2 : 1);
  if (block.bias == Bias::Without) return matrices + norms;
  return matrices + norms + (inner - d + ups * block.ffn) / tensor_parallel + 2 * d;
}

}  // namespace refrain::estimate
