// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/estimate/check.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

/// A published calculator, digit for digit, its faults included: for those who know its tables.
/// What Refrain advises from is the rest of `refrain::estimate`.
///
/// GB are 2^30 bytes and doubles, percent are 0 to 100, **interval 1 means store all**, a boundary
/// is priced like a whole layer, and a step is three forwards. Layers and intervals are at least 1,
/// or else `OptionError` is thrown.
namespace refrain::estimate::article {

inline constexpr double kGb = 1024.0 * 1024.0 * 1024.0;
inline constexpr double kAdamBytes = 8;
inline constexpr double kDeviceGb = 80;
inline constexpr std::int64_t kMostBatch = 64;
inline constexpr std::array<std::int64_t, 6> kIntervals = {1, 2, 4, 8, 16, 32};
inline constexpr double kPercent = 100;

struct LayerShape {
  std::int64_t batch = 1;
  std::int64_t sequence = 0;
  std::int64_t width = 0;
  std::int64_t ffn = 0;
  std::int64_t heads = 0;
  std::int64_t element = 2;  ///< Bytes.
};

/// In GB. The total counts the attention output too, which has no field of its own.
struct LayerMemory {
  double qkv = 0;
  double attention_weights = 0;
  double ffn = 0;
  double residuals = 0;
  double total = 0;
};

[[nodiscard]] inline LayerMemory activation_memory_per_layer(const LayerShape& layer) {
  for (const auto& [name, value] :
       {std::pair{"the batch", layer.batch}, std::pair{"the sequence", layer.sequence},
        std::pair{"the width", layer.width}, std::pair{"the feed-forward width", layer.ffn},
        std::pair{"the number of heads", layer.heads}, std::pair{"the element", layer.element}})
    detail::at_least_one(name, value);
  const auto tokens = static_cast<double>(layer.batch) * static_cast<double>(layer.sequence);
  const double unit = static_cast<double>(layer.element) / kGb;
  const double wide = tokens * static_cast<double>(layer.width) * unit;
  const double ffn = tokens * static_cast<double>(layer.ffn) * unit;
  const double weights =
      tokens * static_cast<double>(layer.sequence) * static_cast<double>(layer.heads) * unit;
  return {3 * wide, weights, ffn + wide, 2 * wide, 7 * wide + ffn + weights};
}

struct TrainingMemory {
  std::int64_t parameters = 0;
  double parameters_gb = 0;
  double optimizer_gb = 0;
  double activations_gb = 0;
  double total_gb = 0;
};

[[nodiscard]] inline TrainingMemory total_training_memory(std::int64_t layers,
                                                          const LayerShape& layer) {
  detail::at_least_one("the number of layers", layers);
  TrainingMemory memory;
  memory.activations_gb = static_cast<double>(layers) * activation_memory_per_layer(layer).total;
  memory.parameters = layers * (4 * layer.width * layer.width + 2 * layer.width * layer.ffn);
  const auto count = static_cast<double>(memory.parameters);
  memory.parameters_gb = count * static_cast<double>(layer.element) / kGb;
  memory.optimizer_gb = count * kAdamBytes / kGb;
  memory.total_gb = memory.parameters_gb + memory.optimizer_gb + memory.activations_gb;
  return memory;
}

struct IntervalCost {
  double activation_gb = 0;
  double extra_forward_pct = 0;
  double extra_step_pct = 0;
};

[[nodiscard]] inline IntervalCost simulate_memory_and_flops(std::int64_t layers,
                                                            std::int64_t interval,
                                                            double layer_gb) {
  detail::at_least_one("the number of layers", layers);
  detail::at_least_one("the interval", interval);
  const std::int64_t kept = layers / interval;
  const auto units = static_cast<double>(interval == 1 ? layers : kept + interval);
  constexpr double kStepForwards = 3;
  IntervalCost cost;
  cost.activation_gb = units * layer_gb;
  cost.extra_forward_pct =
      static_cast<double>(layers - kept) / static_cast<double>(layers) * kPercent;
  cost.extra_step_pct = cost.extra_forward_pct / kStepForwards;
  return cost;
}

/// Of 1 to 64; 0 if not even one fits.
[[nodiscard]] inline std::int64_t max_batch_for_ckpt(std::int64_t layers, std::int64_t interval,
                                                     double layer_gb_of_one, double fixed_gb,
                                                     double device_gb = kDeviceGb) {
  std::int64_t batch = 0;
  while (batch < kMostBatch) {
    const double layer_gb = layer_gb_of_one * static_cast<double>(batch + 1);
    const auto cost = simulate_memory_and_flops(layers, interval, layer_gb);
    if (fixed_gb + cost.activation_gb > device_gb) break;
    ++batch;
  }
  return batch;
}

struct FrontierRow {
  std::int64_t interval = 1;
  double total_gb = 0;
  double saved_pct = 0;  ///< Against interval 1.
  double extra_forward_pct = 0;
  std::optional<double> efficiency;  ///< Percent saved per percent of forward; none: "infinite".
  bool fits = false;
};

/// A row for each of `kIntervals`.
[[nodiscard]] inline std::vector<FrontierRow> frontier(std::int64_t layers, double layer_gb,
                                                       double fixed_gb,
                                                       double device_gb = kDeviceGb) {
  const double all = fixed_gb + simulate_memory_and_flops(layers, 1, layer_gb).activation_gb;
  std::vector<FrontierRow> rows;
  for (const std::int64_t interval : kIntervals) {
    const IntervalCost cost = simulate_memory_and_flops(layers, interval, layer_gb);
    const double total = fixed_gb + cost.activation_gb;
    FrontierRow row = {
        interval,          total, (all - total) / all * kPercent, cost.extra_forward_pct, {},
        total <= device_gb};
    constexpr double kLeast = 0.001;
    if (row.extra_forward_pct > 0)
      row.efficiency = row.saved_pct / std::max(row.extra_forward_pct, kLeast);
    rows.push_back(row);
  }
  return rows;
}

struct ThroughputRow {
  std::int64_t interval = 1;
  std::int64_t max_batch = 0;
  double extra_step_pct = 0;
  double throughput = 0;
};

/// As if a step took the same time at every batch: see `estimate::throughput` for one that grows.
[[nodiscard]] inline std::vector<ThroughputRow> throughput_at_max_batch(
    std::int64_t layers, double layer_gb_of_one, double fixed_gb, double device_gb = kDeviceGb) {
  std::vector<ThroughputRow> rows;
  for (const std::int64_t interval : kIntervals) {
    const std::int64_t batch =
        max_batch_for_ckpt(layers, interval, layer_gb_of_one, fixed_gb, device_gb);
    const double extra =
        simulate_memory_and_flops(layers, interval, layer_gb_of_one).extra_step_pct;
    rows.push_back({interval, batch, extra, static_cast<double>(batch) / (1 + extra / kPercent)});
  }
  return rows;
}

struct Recommendation {
  std::int64_t checkpoint_every = 1;
  double total_gb = 0;
  double extra_forward_pct = 0;
};

/// The first of the intervals 1, 2, 4, 8, 16 and `layers` that fits; nothing if none does.
[[nodiscard]] inline std::optional<Recommendation> recommend_checkpointing(
    double parameters_in_billions, double device_gb, std::int64_t layers, LayerShape layer) {
  constexpr double kBillion = 1e9;
  constexpr double kParameterBytes = 2;
  layer.element = 2;
  const double fixed = parameters_in_billions * kBillion * (kParameterBytes + kAdamBytes) / kGb;
  const double layer_gb = activation_memory_per_layer(layer).total;
  for (const std::int64_t interval : {std::int64_t{1}, std::int64_t{2}, std::int64_t{4},
                                      std::int64_t{8}, std::int64_t{16}, layers}) {
    const IntervalCost cost = simulate_memory_and_flops(layers, interval, layer_gb);
    const double total = fixed + cost.activation_gb;
    if (total <= device_gb) return Recommendation{interval, total, cost.extra_forward_pct};
  }
  return {};
}

}  // namespace refrain::estimate::article
