// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <cstdint>
#include <vector>

namespace support {

/// Every plan of the stages `[first, last)`, the loss behind them if `loss`: each way to run the
/// first stage (inside a replay plainly), or each replay of the first few, before every plan of the
/// rest.
class Programs {
 public:
  using Nodes = std::vector<refrain::SegmentNode>;

  explicit Programs(const refrain::ChainCost& chain) : chain_(chain) {}

  [[nodiscard]] std::vector<refrain::Segmentation> all() const {
    std::vector<refrain::Segmentation> plans;
    for (Nodes& nodes : of(0, chain_.size(), true)) plans.emplace_back(chain_.size(), nodes);
    return plans;
  }

 private:
  [[nodiscard]] std::vector<Nodes> of(std::int64_t first, std::int64_t last, bool loss) const {
    if (first == last) return {{}};
    std::vector<Nodes> plans;
    const auto put_before = [&plans](const refrain::SegmentNode& node, Nodes rest) {
      rest.insert(rest.begin(), node);
      plans.push_back(std::move(rest));
    };
    for (const Nodes& rest : of(first + 1, last, loss)) {
      const std::int64_t ways = loss ? chain_[first].ways() : 1;
      for (std::int64_t option = 0; option < ways; ++option)
        put_before({{first, first + 1}, false, {}, option}, rest);
    }
    // A replay at the very end would be run twice for nothing.
    for (std::int64_t split = first + 1; split < last + (loss ? 1 : 0); ++split) {
      for (const Nodes& inside : of(first, split, false)) {
        for (const Nodes& rest : of(split, last, loss))
          put_before({{first, split}, true, inside}, rest);
      }
    }
    return plans;
  }

  const refrain::ChainCost& chain_;
};

}  // namespace support
