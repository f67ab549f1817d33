// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace refrain::detail {

/// Where the graph that one run builds meets what was there before: the edges to its inputs, to parameters and to
/// whatever else the code captured.
///
///     GraphBorder border;              // before the run
///     ...
///     auto edges = border.edges_below({edge of a result, ...});
///
/// A node is inside if this thread made it after the border was drawn: nodes carry their thread and a sequence number.
class GraphBorder {
 public:
  GraphBorder() : first_(at::sequence_number::peek()), thread_(at::RecordFunction::currentThreadId()) {}

  [[nodiscard]] bool inside(const torch::autograd::Edge& edge) const {
    return edge.is_valid() && edge.function->thread_id() == thread_ && edge.function->sequence_nr() >= first_ &&
           edge.function->sequence_nr() != kAccumulates;
  }

  /// In the order in which a depth-first walk meets them, each once.
  [[nodiscard]] torch::autograd::edge_list edges_below(const torch::autograd::edge_list& roots) const {
    torch::autograd::edge_list border;
    std::unordered_set<torch::autograd::Node*> seen;
    std::vector<torch::autograd::Node*> open;
    for (const auto& root : roots) {
      if (seen.insert(root.function.get()).second) open.push_back(root.function.get());
    }
    while (!open.empty()) {
      const torch::autograd::Node* const node = open.back();
      open.pop_back();
      for (const auto& edge : node->next_edges()) {
        if (!edge.is_valid()) continue;
        if (inside(edge)) {
          if (seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
        } else if (std::find(border.begin(), border.end(), edge) == border.end()) {
          border.push_back(edge);
        }
      }
    }
    return border;
  }

 private:
  static constexpr std::uint64_t kAccumulates = UINT64_MAX;  // nodes that accumulate into a leaf

  std::uint64_t first_;
  std::uint64_t thread_;
};

}  // namespace refrain::detail
