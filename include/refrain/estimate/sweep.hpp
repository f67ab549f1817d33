// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/estimate/chain.hpp>
#include <refrain/estimate/interval.hpp>
#include <refrain/estimate/model.hpp>
#include <refrain/estimate/training.hpp>
#include <refrain/estimate/workload.hpp>
#include <refrain/profile.hpp>
#include <refrain/schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace refrain::estimate {

/// What a step of the whole model takes.
struct StepEstimate {
  Bytes peak;                   ///< All of it: parameters, optimizer, activations, loss.
  double overhead = 0;          ///< Beyond a plain step, as a share of it, with early stop.
  std::int64_t peak_stage = 0;  ///< Of `chain_of`: the number of stages for the loss.
};

/// With segments of `interval` blocks, each replayed but the last, as `simulate` plays it.
[[nodiscard]] inline StepEstimate step(const ModelShape& model, const Workload& work,
                                       const Training& training, std::int64_t interval) {
  const Profile profile = profile_of(model, work, training);
  const ScheduleCost cost = simulate(cut_blocks(model, interval), profile.chain);
  return {profile.resident + Bytes(cost.peak), cost.seconds / plain_cost(profile).seconds - 1,
          cost.peak_stage};
}

/// The largest batch of the whole model with which a step stays within what is usable of `device`;
/// 0 if not even one sample does. The batch of `work` does not matter.
///
/// Time: some dozens of `step`.
[[nodiscard]] inline std::int64_t largest_batch(const ModelShape& model, Workload work,
                                                const Training& training, std::int64_t interval,
                                                Bytes device) {
  const Bytes budget = usable(device, training);
  const auto fits = [&](std::int64_t batch) {
    work.batch = batch;
    return step(model, work, training, interval).peak <= budget;
  };
  if (!fits(1)) return 0;
  std::int64_t most = 1;
  while (fits(2 * most)) most *= 2;
  for (std::int64_t more = most / 2; more > 0; more /= 2) {
    if (fits(most + more)) most += more;
  }
  return most;
}

/// One interval, at the batch of the workload and at the largest.
struct SweepRow {
  std::int64_t interval = 1;
  StepEstimate step;
  bool fits = false;
  std::int64_t largest_batch = 0;
  double throughput = 0;  ///< At the largest batch, see `throughput`.
};

/// A row for 1, 2, 4, … and for all blocks. `fixed_time` is what a step takes at any batch, in
/// plain steps of one sample.
[[nodiscard]] inline std::vector<SweepRow> sweep(const ModelShape& model, const Workload& work,
                                                 const Training& training, Bytes device,
                                                 double fixed_time = 0) {
  detail::check(model);
  std::vector<SweepRow> rows;
  for (std::int64_t interval = 1;; interval = std::min(2 * interval, model.blocks)) {
    const StepEstimate at_batch = step(model, work, training, interval);
    const std::int64_t batch = largest_batch(model, work, training, interval, device);
    rows.push_back({interval, at_batch, at_batch.peak <= usable(device, training), batch,
                    throughput(batch, at_batch.overhead, fixed_time)});
    if (interval == model.blocks) return rows;
  }
}

/// A table, a row an interval.
[[nodiscard]] inline std::string to_string(const std::vector<SweepRow>& rows) {
  constexpr double kPercent = 100;
  std::string text = fmt::format("{:>8}  {:>11}  {:>8}  {:>4}  {:>13}  {:>10}\n", "interval",
                                 "peak", "overhead", "fits", "largest batch", "throughput");
  for (const SweepRow& row : rows) {
    text += fmt::format("{:>8}  {:>11}  {:>6.1f} %  {:>4}  {:>13}  {:>10.2f}\n", row.interval,
                        row.step.peak, row.step.overhead * kPercent, row.fits ? "yes" : "no",
                        row.largest_batch, row.throughput);
  }
  return text;
}

}  // namespace refrain::estimate
