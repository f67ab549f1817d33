// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/schedule.hpp>
#include <refrain/stage_cost.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace support {

/// A file of expected values, of tests/oracles.
inline nlohmann::json oracle(const std::string& file) {
  std::ifstream stream(std::string(REFRAIN_TESTS_DIR) + "/oracles/" + file);
  if (!stream) throw std::runtime_error("no oracle " + file);
  return nlohmann::json::parse(stream);
}

/// A chain in the additive form: temporaries on top of what a stage keeps.
struct Additive {
  std::vector<std::int64_t> boundaries, saved, forward, backward, forward_more, backward_more;
  std::vector<double> tail = {};

  [[nodiscard]] refrain::ChainCost chain() const {
    refrain::ChainCost chain;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      refrain::StageCost stage;
      stage.input = boundaries[i];
      stage.output = boundaries[i + 1];
      stage.nograd_forward = static_cast<double>(forward[i]);
      stage.nograd_peak = stage.output + forward_more[i];
      stage.tail = tail.empty() ? 0 : tail[i];
      auto& plain = stage.plain;
      plain.forward = static_cast<double>(forward[i]);
      plain.backward = static_cast<double>(backward[i]);
      plain.saved = stage.saved_tensors = saved[i];
      plain.forward_peak = saved[i] + forward_more[i];
      plain.backward_peak = saved[i] + stage.input + backward_more[i];
      plain.backward_peak_with_gradient = plain.backward_peak + stage.output;
      plain.replay_peak =
          std::max(plain.backward_peak_with_gradient, plain.forward_peak + stage.output);
      chain.stages.push_back(stage);
    }
    chain.loss_peak = boundaries.back();
    return chain;
  }

  /// `vectors` of the oracle file.
  static Additive of(const nlohmann::json& vectors, bool early_stop) {
    Additive given = {vectors["X"],  vectors["A"],  vectors["uf"],
                      vectors["ub"], vectors["tf"], vectors["tb"]};
    if (early_stop) given.tail = vectors["e"].get<std::vector<double>>();
    return given;
  }
};

inline refrain::ChainCost equal_chain(std::size_t stages, std::int64_t saved) {
  const std::vector<std::int64_t> ones(stages, 1);
  const std::vector<std::int64_t> zeros(stages, 0);
  return Additive{std::vector<std::int64_t>(stages + 1, 1),
                  std::vector<std::int64_t>(stages, saved),
                  ones,
                  zeros,
                  zeros,
                  zeros}
      .chain();
}

}  // namespace support
