// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/estimate/block.hpp>
#include <refrain/estimate/workload.hpp>

namespace refrain::estimate {

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
