// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace refrain::detail {

// LibTorch held nodes by std::shared_ptr once, with a deleter that frees long chains without deep
// recursion, and holds them by c10::intrusive_ptr since.
template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  } else {
    auto* const node = new Node(std::forward<Arguments>(arguments)...);
    return std::shared_ptr<Node>(node, [](auto* done) { deleteNode(done); });
  }
}

/// Where the graph that one run builds meets what was there before: the edges to its inputs, to
/// parameters and to whatever else the code captured.
///
///     GraphBorder border;              // before the run
///     ...
///     auto crossings = border.crossings_below({edge of a result, ...});
///
/// A node is inside if this thread made it after the border was drawn: nodes carry their thread and
/// a sequence number.
class GraphBorder {
 public:
  GraphBorder()
      : first_(at::sequence_number::peek()), thread_(at::RecordFunction::currentThreadId()) {}

  [[nodiscard]] bool inside(const torch::autograd::Edge& edge) const {
    return edge.is_valid() && edge.function->thread_id() == thread_ &&
           edge.function->sequence_nr() >= first_ && edge.function->sequence_nr() != kAccumulates &&
           std::find(outside_.begin(), outside_.end(), edge.function.get()) == outside_.end();
  }

  /// Call after the run for each tensor from outside. A view whose base was changed gets a new node
  /// when it is next used, be it inside.
  void leave_outside(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_view()) return;
    const auto& node = tensor.grad_fn();
    if (node != nullptr && inside({node, 0})) outside_.push_back(node.get());
  }

  /// One edge that leads out of the inside.
  struct Crossing {
    torch::autograd::Node* from;
    std::size_t index;  ///< Among the node's edges.
  };

  /// In the order in which a depth-first walk from `roots` meets them.
  [[nodiscard]] std::vector<Crossing> crossings_below(
      const torch::autograd::edge_list& roots) const {
    std::vector<Crossing> crossings;
    std::unordered_set<torch::autograd::Node*> seen;
    std::vector<torch::autograd::Node*> open;
    for (const auto& root : roots) {
      if (seen.insert(root.function.get()).second) open.push_back(root.function.get());
    }
    while (!open.empty()) {
      torch::autograd::Node* const node = open.back();
      open.pop_back();
      const auto& edges = node->next_edges();
      for (std::size_t i = 0; i < edges.size(); ++i) {
        if (!edges[i].is_valid()) continue;
        if (!inside(edges[i])) {
          crossings.push_back({node, i});
        } else if (seen.insert(edges[i].function.get()).second) {
          open.push_back(edges[i].function.get());
        }
      }
    }
    return crossings;
  }

  /// Where they lead, each place once.
  [[nodiscard]] static torch::autograd::edge_list targets_of(
      const std::vector<Crossing>& crossings) {
    torch::autograd::edge_list targets;
    for (const auto& [node, index] : crossings) {
      const auto& edge = node->next_edge(index);
      if (std::find(targets.begin(), targets.end(), edge) == targets.end()) targets.push_back(edge);
    }
    return targets;
  }

 private:
  static constexpr std::uint64_t kAccumulates = UINT64_MAX;  // nodes that accumulate into a leaf

  std::uint64_t first_;
  std::uint64_t thread_;
  std::vector<const torch::autograd::Node*> outside_;
};

/// Cuts a private graph off at its border while it lives: each crossing leads to a node of its own,
/// where a gradient can be collected, and not on into the graph outside.
class BorderCut {
 public:
  BorderCut(std::vector<GraphBorder::Crossing> crossings, const torch::autograd::edge_list& targets)
      : crossings_(std::move(crossings)) {
    for (const auto& target : targets) ends_.push_back(end_for(target));
    for (const auto& [node, index] : crossings_) {
      const auto& edge = node->next_edges()[index];
      const auto place = std::find(targets.begin(), targets.end(), edge) - targets.begin();
      before_.push_back(edge);
      lead(crossings_[before_.size() - 1], ends_[static_cast<std::size_t>(place)]);
    }
  }

  ~BorderCut() {
    for (std::size_t i = 0; i < crossings_.size(); ++i) lead(crossings_[i], before_[i]);
  }

  BorderCut(const BorderCut&) = delete;
  BorderCut& operator=(const BorderCut&) = delete;

  /// Where the gradient that would go to a target arrives, in the order of the targets.
  [[nodiscard]] const torch::autograd::edge_list& ends() const { return ends_; }

 private:
  class End final : public torch::autograd::Node {
    torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
  };

  static void lead(const GraphBorder::Crossing& crossing, const torch::autograd::Edge& edge) {
    crossing.from->next_edges()[crossing.index] = edge;
    // A write to a view wraps the node of the write, which must lead where the wrapper leads, but
    // for the base.
    const auto* const write = dynamic_cast<torch::autograd::CopySlices*>(crossing.from);
    if (write != nullptr && crossing.index > 0 && write->fn != nullptr)
      write->fn->next_edges()[crossing.index] = edge;
  }

  static torch::autograd::Edge end_for(const torch::autograd::Edge& target) {
    const auto& expected = target.function->input_metadata(target.input_nr);
    const at::NoGradGuard no_grad;
    const auto end = make_node<End>();
    return {end,
            end->add_input_metadata(
                at::empty({}, expected.options()).expand_symint(expected.shape_as_dim_vector()))};
  }

  std::vector<GraphBorder::Crossing> crossings_;
  torch::autograd::edge_list ends_;
  torch::autograd::edge_list before_;
};

}  // namespace refrain::detail
