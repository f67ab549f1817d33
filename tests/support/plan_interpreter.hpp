// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/segment.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace support {

/// Carries a plan out on a chain of names: which results, tapes and gradients exist. Complains, by
/// an exception, about whatever is used before it exists or made twice. Knows nothing of costs or
/// of how plans are made.
class PlanInterpreter {
 public:
  explicit PlanInterpreter(const refrain::Segmentation& cut) : stages_(cut.stages()) {
    results_[0] = 1;
    forward(cut.nodes());
    need(results_.contains(stages_), "the loss has no input");
    gradient_ = stages_;
    backward(cut.nodes());
    need(gradient_ == 0, fmt::format("the gradient stops at {}", gradient_));
    need(tapes_.empty(), "a tape is left over");
    for (std::int64_t i = 0; i < stages_; ++i)
      need(taped_[i] == 1, fmt::format("stage {} ran with grad {} times", i, taped_[i]));
  }

  /// Of single stages, with grad or without.
  [[nodiscard]] std::int64_t forwards() const { return forwards_; }

 private:
  using Nodes = std::vector<refrain::SegmentNode>;

  static void need(bool holds, const std::string& or_else) {
    if (!holds) throw std::logic_error(or_else);
  }

  void forward(const Nodes& nodes) {
    for (const auto& node : nodes) {
      const auto [begin, end] = node.range;
      need(results_.contains(begin), fmt::format("stage {} has no input", begin));
      for (std::int64_t i = begin; i < end; ++i) {
        ++forwards_;
        if (node.replayed) continue;
        need(tapes_.insert(i).second, fmt::format("stage {} has a tape already", i));
        ++taped_[i];
        hold(i + 1);
      }
      if (node.replayed) hold(end);
    }
  }

  void backward(const Nodes& nodes) {
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      const auto [begin, end] = node->range;
      if (node->replayed) {
        drop(end);
        need(results_.contains(begin), fmt::format("the replay from {} has no input", begin));
        const Nodes whole = {{node->range, false}};
        const Nodes& inside = node->inside.empty() ? whole : node->inside;
        forward(inside);
        backward(inside);
      } else {
        for (std::int64_t i = end; i-- > begin;) {
          need(gradient_ == i + 1, fmt::format("stage {} runs backward without a gradient", i));
          need(tapes_.erase(i) == 1, fmt::format("stage {} runs backward without a tape", i));
          drop(i + 1);
          gradient_ = i;
        }
      }
    }
  }

  void hold(std::int64_t i) { ++results_[i]; }
  void drop(std::int64_t i) {
    need(results_.contains(i), fmt::format("result {} is dropped twice", i));
    if (--results_[i] == 0) results_.erase(i);
  }

  std::int64_t stages_;
  std::map<std::int64_t, int> results_;
  std::set<std::int64_t> tapes_;
  std::map<std::int64_t, int> taped_;
  std::int64_t gradient_ = -1;
  std::int64_t forwards_ = 0;
};

}  // namespace support
