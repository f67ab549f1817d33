// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "comparison.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace train_gpt {

inline std::string table(const std::vector<Row>& rows) {
  const auto& plain = rows.front();
  auto text = fmt::format("{:<10} {:>11} {:>9} {:>10} {:>8} {:>8} {:>11} {:>10} {:>16}\n", "policy",
                          "peak bytes", "of plain", "step time", "replays", "matmuls", "first loss",
                          "last loss", "gradients equal");
  for (const auto& row : rows) {
    text += fmt::format(
        "{:<10} {:>11} {:>8.1f}% {:>9.2f}x {:>8} {:>8} {:>11.4f} {:>10.4f} {:>16}\n", row.policy,
        refrain::to_string(row.peak), 100 * (row.peak / plain.peak),
        row.median_seconds() / plain.median_seconds(), row.replays, row.matmuls, row.losses.front(),
        row.losses.back(), row.same_training_as(plain) ? "yes" : "NO");
  }
  return text;
}

inline nlohmann::json json_of(const Row& row, const Row& plain) {
  auto timeline = nlohmann::json::array();
  for (const auto& [seconds, live] : row.timeline) timeline.push_back({seconds, live.count()});
  nlohmann::json json{{"policy", row.policy},
                      {"peak_bytes", row.peak.count()},
                      {"rest_bytes", row.at_rest.count()},
                      {"share_of_plain", row.peak / plain.peak},
                      {"median_step_seconds", row.median_seconds()},
                      {"step_seconds", row.seconds},
                      {"time_of_plain", row.median_seconds() / plain.median_seconds()},
                      {"replays", row.replays},
                      {"matmuls", row.matmuls},
                      {"losses", row.losses},
                      {"gradients_bit_equal", row.same_training_as(plain)},
                      {"live_bytes", timeline}};
  if (row.predicted) json["predicted_peak_bytes"] = row.predicted->count();
  return json;
}

inline std::filesystem::path results_file(const Options& options) {
  std::error_code ignored;
  std::filesystem::create_directories(options.out, ignored);
  return std::filesystem::path(options.out) / "train_gpt.json";
}

/// What `plot.py` draws.
inline void write_json(const std::filesystem::path& path, const Options& options,
                       const std::vector<Row>& rows) {
  auto policies = nlohmann::json::array();
  for (const auto& row : rows) policies.push_back(json_of(row, rows.front()));
  const nlohmann::json all{{"layers", options.layers}, {"width", options.width},
                           {"heads", options.heads},   {"seq", options.seq},
                           {"batch", options.batch},   {"steps", options.steps},
                           {"device", options.device}, {"policies", policies}};
  std::ofstream file(path);
  file << all << '\n';
  if (!file) throw BadOption(fmt::format("--out {}: cannot be written.", path.string()));
}

}  // namespace train_gpt
