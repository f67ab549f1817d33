// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/estimate/advice.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/block_flops.hpp>
#include <refrain/estimate/interval.hpp>
#include <refrain/estimate/model.hpp>
#include <refrain/estimate/sweep.hpp>
#include <refrain/estimate/training.hpp>
#include <refrain/estimate/workload.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace refrain::estimate {
namespace detail {

/// Decides, and says why.
class Adviser {
 public:
  Adviser(ModelShape model, Workload work, Training training, Bytes device)
      : model_(std::move(model)),
        work_(work),
        training_(training),
        device_(device),
        budget_(usable(device, training)) {}

  [[nodiscard]] Advice advise() {
    const StepEstimate all = step(model_, work_, training_, model_.blocks);
    if (all.peak <= budget_) {
      because(Why::Fits, fmt::format("storing all takes {} of {} usable.", all.peak, budget_));
      return finish(Verdict::StoreAll, model_.blocks, all);
    }
    because(Why::DoesNotFit,
            fmt::format("storing all takes {}, usable are {} of {}.", all.peak, budget_, device_));
    return replay();
  }

 private:
  Advice replay() {
    auto [interval, cost] = cheapest();
    if (cost.peak <= budget_) {
      about_replays(interval, cost);
      about_loss(cost);
      return finish(Verdict::Checkpoint, interval, cost);
    }
    because(Why::NoIntervalFits,
            fmt::format("the least peak of all intervals is {}, with segments of {}.", cost.peak,
                        interval));
    work_.batch = most_samples();
    if (work_.batch == 0) return shrink();
    std::tie(interval, cost) = cheapest();
    if (interval < model_.blocks) about_replays(interval, cost);
    about_loss(cost);
    return finish(Verdict::SmallerBatch, interval, cost);
  }

  [[nodiscard]] std::int64_t most_samples() const {
    std::int64_t most = 0;
    for (std::int64_t interval = 1; interval <= model_.blocks; ++interval)
      most = std::max(most, largest_batch(model_, work_, training_, interval, device_));
    return most;
  }

  /// The fastest interval that fits, or else the one with the least peak.
  [[nodiscard]] std::pair<std::int64_t, StepEstimate> cheapest() const {
    std::pair<std::int64_t, StepEstimate> best = {1, step(model_, work_, training_, 1)};
    for (std::int64_t interval = 2; interval <= model_.blocks; ++interval) {
      const StepEstimate other = step(model_, work_, training_, interval);
      const bool fit = best.second.peak <= budget_;
      const bool better = fit ? other.peak <= budget_ && other.overhead < best.second.overhead
                              : other.peak < best.second.peak;
      if (better) best = {interval, other};
    }
    return best;
  }

  void about_replays(std::int64_t interval, const StepEstimate& cost) {
    constexpr double kPercent = 100;
    because(Why::CheapestThatFits,
            fmt::format("segments of {} fit with {} and make a step {:.1f} % longer, the least of "
                        "all that fit.",
                        interval, cost.peak, cost.overhead * kPercent));
    const EqualBlocks blocks = equal_blocks(model_.blocks, block_bytes(model_.block, work_));
    because(
        Why::BytesSetTheInterval,
        fmt::format("a block leaves {:.1f} boundaries behind: the least peak is at about {:.1f} "
                    "blocks a segment, not at the root of {}, {:.1f}.",
                    blocks.kept / blocks.boundary, ideal_interval(blocks), model_.blocks,
                    std::sqrt(static_cast<double>(model_.blocks))));
    if (work_.residual_dropout > 0) {
      because(Why::DropoutHindersEarlyStop,
              "the dropout after the MLP saves its mask last, so replays cannot stop early.");
    }
    about_attention();
  }

  void about_attention() {
    const BlockBytes bytes = block_bytes(model_.block, work_);
    constexpr double kPercent = 100;
    if (work_.attention == Attention::Flash) {
      const BlockFlops flops = block_flops(model_.block, work_);
      because(Why::FlashRecomputesTwice,
              fmt::format("a replay runs flash attention once more, {:.1f} % of a block's forward, "
                          "though its backward makes the scores again anyway. Keeping its result, "
                          "{} a block, spares that.",
                          flops.attention / flops.forward * kPercent,
                          bytes.attention_output + bytes.attention));
      return;
    }
    Workload flash = work_;
    flash.attention = Attention::Flash;
    const StepEstimate all = step(model_, flash, training_, model_.blocks);
    because(Why::FlashInsteadOfReplays,
            fmt::format("plain attention keeps {} of a block's {}; with flash attention storing "
                        "all takes {}, which {}.",
                        bytes.attention, bytes.kept(), all.peak,
                        all.peak <= budget_ ? "fits" : "does not fit either"));
  }

  void about_loss(const StepEstimate& cost) {
    if (cost.peak_stage <= model_.blocks) return;
    const HeadBytes head = head_bytes(model_, work_);
    because(Why::LossSetsThePeak,
            fmt::format("the peak is in the head or the loss, beside the last segment: {} of "
                        "logits and {} more, which a loss in pieces lowers.",
                        head.logits, head.loss));
  }

  Advice shrink() {
    work_.batch = 1;
    const auto [interval, cost] = cheapest();
    work_.batch = 0;
    const StateBytes states = state_bytes(model_, training_, work_.tensor_parallel);
    because(
        Why::NotEvenOneSample,
        fmt::format("one sample takes at least {}; parameters, gradients and optimizer are {} of "
                    "it. Share them among devices or use an optimizer with smaller states; "
                    "cut the sample by shorter sequences or sequence parallelism.",
                    cost.peak, states.total()));
    return finish(Verdict::Shrink, interval, cost);
  }

  void because(Why why, std::string text) { reasons_.push_back({why, std::move(text)}); }

  Advice finish(Verdict verdict, std::int64_t interval, const StepEstimate& cost) {
    return {verdict, interval, work_.batch, cost, std::move(reasons_)};
  }

  ModelShape model_;
  Workload work_;
  Training training_;
  Bytes device_;
  Bytes budget_;
  std::vector<Reason> reasons_;
};

}  // namespace detail

/// What to do so that a step fits a device: store all if that fits, or else the fastest interval
/// that does, or else a smaller batch with it; only then fewer bytes of state.
///
///     auto advice = estimate::recommend(estimate::preset("llama-7b"), work, {}, 80_GiB);
///     fmt::print("{}\n", to_string(advice));
///
/// A profile of the real blocks and `plan(profile, budget)` know better; this needs neither.
/// Throws `OptionError` for sizes that make no model.
[[nodiscard]] inline Advice recommend(const ModelShape& model, const Workload& work,
                                      const Training& training, Bytes device) {
  return detail::Adviser(model, work, training, device).advise();
}

}  // namespace refrain::estimate
