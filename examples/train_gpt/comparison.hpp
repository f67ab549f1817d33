// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "meters.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "text.hpp"
#include "trainer.hpp"
#include <refrain/memory_timeline.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace train_gpt {

/// What is found out about one policy.
struct Row {
  std::string policy;
  Bytes peak;
  std::optional<Bytes> predicted;  // of a plan, before training
  Bytes at_rest;                   // weights and optimizer, between steps
  std::vector<double> losses;
  std::vector<std::uint64_t> gradients;  // a fingerprint per step
  std::vector<double> seconds;           // steps timed in turn with the other policies' steps
  std::int64_t replays = 0;              // blocks run again in one step
  std::int64_t matmuls = 0;              // in one step
  std::vector<refrain::MemorySample> timeline;

  double median_seconds() const {
    auto sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    const auto middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

  bool same_training_as(const Row& plain) const {
    return gradients == plain.gradients && losses == plain.losses;
  }
};

inline std::string progress_line(const std::string& who, const Step& step, std::int64_t number,
                                 const Options& options, std::int64_t tokens) {
  return fmt::format("{:<11} step {:>4}/{}  loss {:.4f}  {:>6.0f} tokens/s  memory {} now, {} peak",
                     who, number, options.steps, step.loss,
                     static_cast<double>(tokens) / step.seconds, step.memory.live,
                     step.memory.peak);
}

/// Trains a fresh model under one policy and writes down what it took.
inline Row train(const Options& options, const Text& text, const std::string& policy,
                 Progress& progress) {
  Row row;
  row.policy = policy;
  Trainer trainer(options, text, policy);
  if (const auto* const plan = trainer.plan_of(policy)) row.predicted = plan->predicted_peak();
  std::string line;
  while (trainer.steps() < options.steps) {
    const auto step =
        trainer.step([&] { row.gradients.push_back(fingerprint(trainer.gradients())); });
    row.losses.push_back(step.loss);
    row.peak = std::max(row.peak, step.memory.peak);
    row.at_rest = step.memory.live;
    line = progress_line(policy, step, trainer.steps(), options, trainer.tokens_per_step());
    progress.show(line);
  }
  progress.keep(line);
  return row;
}

/// The live bytes over one step: of several steps the quickest, the one least disturbed.
inline std::vector<refrain::MemorySample> curve_of(Trainer& trainer, int looks) {
  std::vector<refrain::MemorySample> quickest;
  for (int look = 0; look < looks; ++look) {
    const refrain::MemoryTimeline timeline;
    trainer.step();
    auto samples = timeline.samples();
    if (quickest.empty() || samples.back().seconds < quickest.back().seconds) {
      quickest = std::move(samples);
    }
  }
  return quickest;
}

/// Looks at a few steps of each policy closely, then times them in turn: one model changes its
/// policy from step to step, so that whatever else the machine does meets all of them alike.
inline void measure(const Options& options, const Text& text, int rounds, std::vector<Row>& rows,
                    Progress& progress) {
  constexpr int kLooks = 3;
  Trainer trainer(options, text, "none");
  trainer.step();  // makes what the optimizer keeps
  for (auto& row : rows) {
    progress.show(fmt::format("a close look at {}", row.policy));
    trainer.use(row.policy);
    {
      const auto replays = trainer.replays();
      const MatmulCounter matmuls;
      trainer.step();
      row.matmuls = matmuls.so_far();
      row.replays = trainer.replays() - replays;
    }
    if (trainer.device().is_cpu()) row.timeline = curve_of(trainer, kLooks);
  }
  for (int round = 0; round < rounds; ++round) {
    for (auto& row : rows) {
      progress.show(fmt::format("step times, round {} of {}: {}", round + 1, rounds, row.policy));
      trainer.use(row.policy);
      row.seconds.push_back(trainer.step().seconds);
    }
  }
}

}  // namespace train_gpt
