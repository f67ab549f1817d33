// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/estimate/block.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/block_flops.hpp>
#include <refrain/estimate/check.hpp>
#include <refrain/estimate/workload.hpp>
#include <refrain/segment.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace refrain::estimate {

/// Equal blocks in segments of `interval` blocks, each replayed but the last: 1 makes each block
/// its own checkpoint, the number of blocks stores all.
///
/// The formulas are for blocks alone, and exact where a block leaves behind at least its boundary.
struct EqualBlocks {
  std::int64_t blocks = 0;
  Bytes boundary;  ///< Of each block's input.
  Bytes kept;      ///< What one leaves behind, its output included.
};

[[nodiscard]] inline EqualBlocks equal_blocks(std::int64_t blocks, const BlockBytes& bytes) {
  return {blocks, bytes.boundary, bytes.kept()};
}

namespace detail {

inline void check(const EqualBlocks& chain) {
  at_least_one("the number of blocks", chain.blocks);
  at_least_one("the boundary in bytes", chain.boundary.count());
  at_least_one("what a block keeps in bytes", chain.kept.count());
}

inline void check_interval(std::int64_t blocks, std::int64_t interval) {
  at_least_one("the number of blocks", blocks);
  if (interval >= 1 && interval <= blocks) return;
  throw OptionError(fmt::format("estimate: segments of {} of {} blocks.", interval, blocks),
                    fmt::format("choose 1, each block a checkpoint, to {}, store all.", blocks));
}

}  // namespace detail

/// Boundaries, one live segment, and two gradients: `⌊N/K⌋ X + K Ā + 2 X`.
[[nodiscard]] inline Bytes peak(const EqualBlocks& chain, std::int64_t interval) {
  detail::check(chain);
  detail::check_interval(chain.blocks, interval);
  return (chain.blocks / interval + 2) * chain.boundary + interval * chain.kept;
}

/// Of segments of any lengths, as `even_segments` makes them.
[[nodiscard]] inline Bytes peak(const EqualBlocks& chain, const std::vector<Segment>& segments) {
  detail::check(chain);
  Bytes most;
  std::int64_t count = 0;
  for (const Segment& segment : segments)
    most = std::max(most, ++count * chain.boundary + segment.size() * chain.kept);
  return most + 2 * chain.boundary;
}

/// `√(N X / Ā)`: √N where a block leaves no more behind than its boundary, 1 to 2 for transformers.
[[nodiscard]] inline double ideal_interval(const EqualBlocks& chain) {
  detail::check(chain);
  return std::sqrt(static_cast<double>(chain.blocks) * (chain.boundary / chain.kept));
}

/// How much of a block's forward a replay that ends with it leaves out by stopping early.
[[nodiscard]] inline double early_stop_rebate(const BlockShape& block, const Workload& work) {
  const BlockFlops flops = block_flops(block, work);
  return flops.tail / flops.forward;
}

/// Forwards made again, as a share of one forward of all blocks: `(G - 1)(K - rebate) / N` for
/// `G` segments. Rebate 0 is without early stop.
///
///     estimate::extra_forward(32, 1);                       // 0.97
///     estimate::extra_forward(32, 1, 1 / 3.25);             // 0.67
[[nodiscard]] inline double extra_forward(std::int64_t blocks, std::int64_t interval,
                                          double rebate = 0) {
  detail::check_interval(blocks, interval);
  detail::check_rate("the early-stop rebate", rebate);
  const std::int64_t segments = (blocks + interval - 1) / interval;
  return static_cast<double>(segments - 1) * (static_cast<double>(interval) - rebate) /
         static_cast<double>(blocks);
}

/// The interval with the least peak; of several, the one with the fewest forwards made again.
[[nodiscard]] inline std::int64_t best_interval(const EqualBlocks& chain) {
  const auto cost = [&chain](std::int64_t interval) {
    return std::pair(peak(chain, interval), extra_forward(chain.blocks, interval));
  };
  std::int64_t best = 1;
  for (std::int64_t interval = 2; interval <= chain.blocks; ++interval) {
    if (cost(interval) < cost(best)) best = interval;
  }
  return best;
}

/// The same as a share of a plain step, whose backward takes so many forwards.
[[nodiscard]] inline double extra_step(double extra_forward, double backward = 2) {
  if (backward <= 0) {
    throw OptionError(fmt::format("estimate: a backward of {} forwards.", backward),
                      "2 is what matrix products take.");
  }
  return extra_forward / (1 + backward);
}

/// How many samples fit, from the blocks of one. 0 if not even one does.
[[nodiscard]] inline std::int64_t largest_batch(const EqualBlocks& of_one, std::int64_t interval,
                                                Bytes fixed, Bytes device) {
  return std::max(Bytes(0), device - fixed).count() / peak(of_one, interval).count();
}

/// Samples in the time that a plain step takes for one, where a step's time grows with its batch:
/// beside `fixed`, in the same unit, what it takes at any batch (launches, the optimizer).
///
///     estimate::throughput(3, 0.25);        // 0.8: a larger batch alone gains nothing
///     estimate::throughput(3, 0.25, 4);     // 0.39, where a batch of 1 without replays has 0.2
[[nodiscard]] inline double throughput(std::int64_t batch, double extra_step, double fixed = 0) {
  if (batch < 0 || extra_step < 0 || fixed < 0) {
    throw OptionError(fmt::format("estimate: throughput of batch {}, overhead {}, fixed time {}.",
                                  batch, extra_step, fixed),
                      "none of them can be negative.");
  }
  if (batch == 0) return 0;
  const auto samples = static_cast<double>(batch);
  return samples / (fixed + samples * (1 + extra_step));
}

}  // namespace refrain::estimate
