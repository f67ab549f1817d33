// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/estimate/block.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/block_flops.hpp>
#include <refrain/estimate/interval.hpp>
#include <refrain/estimate/model.hpp>
#include <refrain/estimate/training.hpp>
#include <refrain/estimate/workload.hpp>
#include <refrain/profile.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refrain::estimate {
namespace detail {

/// Operations a second that stage times are told for: only their ratios mean something.
inline constexpr double kNominalSpeed = 1e14;

/// Peaks of a stage whose own temporaries are known, beyond its input.
struct Temporaries {
  std::int64_t forward = 0;   ///< The peak of the forward with grad.
  std::int64_t backward = 0;  ///< Of the backward, without the gradient of the output.
};

[[nodiscard]] inline StageCost stage(std::string name, Bytes input, Bytes output, Bytes kept,
                                     const Temporaries& peaks, const BlockFlops& flops,
                                     Bytes gradients) {
  StageCost stage;
  stage.name = std::move(name);
  stage.input = input.count();
  stage.output = output.count();
  stage.gradients = gradients.count();
  stage.nograd_forward = flops.forward / kNominalSpeed;
  stage.tail = flops.tail / kNominalSpeed;
  stage.nograd_peak = peaks.forward;
  stage.saved_tensors = kept.count();
  GradRun& plain = stage.plain;
  plain.forward = stage.nograd_forward;
  plain.backward = flops.backward / kNominalSpeed;
  plain.saved = kept.count();
  plain.forward_peak = peaks.forward;
  plain.backward_peak = peaks.backward;
  plain.backward_peak_with_gradient = peaks.backward + stage.output;
  plain.replay_peak =
      std::max(plain.backward_peak_with_gradient, plain.forward_peak + stage.output);
  return stage;
}

/// The larger of a block's end and of its attention. End: the middle is added to the MLP's result,
/// kept or not. Attention: the projection's result beside its copies by head, and for plain
/// attention the scores, scaled, masked. Backward: gradients of what is live.
[[nodiscard]] inline Temporaries block_peaks(const BlockShape& block, const Workload& work,
                                             const BlockBytes& bytes) {
  const bool plain = work.attention == Attention::Plain;
  const Bytes scores = plain ? score_bytes(block, work) : Bytes(0);
  const Bytes attention = bytes.norms / 2 + 2 * bytes.qkv + bytes.attention + bytes.output;
  const Bytes whole = bytes.kept() - bytes.middle + 3 * bytes.output;
  const Bytes forward = std::max(whole, attention + 3 * scores);
  const Bytes backward = std::max(bytes.kept() + bytes.boundary + bytes.mlp / 2,
                                  attention + bytes.qkv + 2 * scores + 2 * bytes.boundary);
  return {forward.count(), backward.count()};
}

/// Its backward has `made` gradients, of which `gradients` are new: one that is tied to the head's
/// is added to that.
[[nodiscard]] inline StageCost embedding_stage(const ModelShape& model, const Workload& work,
                                               Bytes output, Bytes made, Bytes gradients) {
  constexpr std::int64_t kTokenId = 8;
  Bytes kept = output;
  if (work.residual_dropout > 0) kept += output.count() / work.element.count() * work.mask;
  const std::int64_t peak = (kept + 2 * output).count();
  BlockFlops flops;
  flops.forward = static_cast<double>(work.tokens()) * static_cast<double>(model.block.width);
  flops.backward = flops.forward;
  return stage("embedding", Bytes(work.tokens() * kTokenId), output, kept,
               {peak, peak + made.count()}, flops, gradients);
}

[[nodiscard]] inline StageCost block_stage(const ModelShape& model, const Workload& work,
                                           Bytes gradients) {
  const BlockBytes bytes = block_bytes(model.block, work);
  Temporaries peaks = block_peaks(model.block, work, bytes);
  peaks.backward += gradients.count();
  return stage("block", bytes.boundary, bytes.output, bytes.kept(), peaks,
               block_flops(model.block, work), gradients);
}

[[nodiscard]] inline StageCost head_stage(const ModelShape& model, const Workload& work,
                                          Bytes input, Bytes gradients) {
  const HeadBytes head = head_bytes(model, work);
  const Bytes kept = head.norm + head.logits;
  BlockFlops flops;
  flops.forward =
      static_cast<double>(head.logits / work.element) * 2 * static_cast<double>(model.block.width);
  flops.backward = 2 * flops.forward;
  flops.tail = flops.forward;
  return stage("head", input, head.logits, kept,
               {(kept + input).count(), (kept + 2 * input + gradients).count()}, flops, gradients);
}

}  // namespace detail

/// A chain for `planner::Frontier` and `simulate`: the embedding, each block, the head, the loss.
///
///     estimate::Workload work{.batch = 4, .sequence = 8192};
///     planner::Frontier(estimate::chain_of(estimate::preset("llama3-8b"), work)).points();
///
/// Times are for 10^14 operations a second and count matrix products alone: use their ratios.
/// Peaks are upper bounds but for what a kernel takes for itself: a forward without grad peaks
/// where one with grad does, a backward holds all that the block keeps, its own parameters'
/// gradients, and gradients of half the MLP or of the attention. Gradients of parameters are new in
/// each step, as after `zero_grad()`; that of a tied embedding is made by the head. The caller
/// holds the logits until the end.
[[nodiscard]] inline ChainCost chain_of(const ModelShape& model, const Workload& work,
                                        const Training& training = {}) {
  detail::check(training);
  const ModelParameters counts = parameters_by_part(model, work.tensor_parallel);
  const HeadBytes head = head_bytes(model, work);
  const StageCost block = detail::block_stage(model, work, counts.block * training.gradient);
  const std::int64_t table =
      detail::vocabulary_part(model, work.tensor_parallel) * model.block.width;
  const std::int64_t tied = model.head == Head::Tied ? table : 0;
  ChainCost chain;
  chain.stages.push_back(detail::embedding_stage(model, work, Bytes(block.input),
                                                 counts.embedding * training.gradient,
                                                 (counts.embedding - tied) * training.gradient));
  for (std::int64_t i = 0; i < model.blocks; ++i) {
    chain.stages.push_back(block);
    chain.stages.back().name = fmt::format("block {}", i);
  }
  chain.stages.push_back(detail::head_stage(model, work, Bytes(block.output),
                                            (counts.head + tied) * training.gradient));
  chain.loss_peak = head.loss.count();
  chain.held = head.logits.count();
  return chain;
}

/// The same with what is resident, parameters and the optimizer's state: `plan(profile, budget)`
/// works on it as on a measured one.
///
///     auto profile = estimate::profile_of(model, work, training);
///     fmt::print("{}\n", refrain::plan(profile, estimate::usable(80_GiB, training)));
[[nodiscard]] inline Profile profile_of(const ModelShape& model, const Workload& work,
                                        const Training& training = {}) {
  Profile profile;
  profile.chain = chain_of(model, work, training);
  for (std::int64_t i = 0; i < profile.chain.size(); ++i) profile.layers.push_back({i, i + 1});
  const StateBytes states = state_bytes(model, training, work.tensor_parallel);
  profile.resident = states.total() - states.gradients;
  profile.device = "an estimate";
  profile.measured_loss = true;
  return profile;
}

/// The chain with its blocks in segments of `interval`, each replayed but the last; embedding and
/// head are plain.
[[nodiscard]] inline Segmentation cut_blocks(const ModelShape& model, std::int64_t interval) {
  detail::check(model);
  detail::check_interval(model.blocks, interval);
  std::vector<SegmentNode> nodes = {{{0, 1}, false}};
  std::int64_t begin = 1;
  for (; begin + interval <= model.blocks; begin += interval)
    nodes.push_back({{begin, begin + interval}, true});
  nodes.push_back({{begin, model.blocks + 2}, false});
  return {model.blocks + 2, std::move(nodes)};
}

}  // namespace refrain::estimate
