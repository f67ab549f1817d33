// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/graph_border.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>
#include <vector>

namespace refrain::detail {

/// The leaves that gradients sent into `roots` reach, and whether they pass through a graph from
/// before the border.
struct Reached {
  std::vector<at::Tensor> leaves;
  bool older_graph = false;

  Reached(const torch::autograd::edge_list& roots, const GraphBorder& border) {
    std::unordered_set<const torch::autograd::Node*> seen;
    std::vector<torch::autograd::Edge> open(roots.begin(), roots.end());
    while (!open.empty()) {
      const torch::autograd::Edge edge = open.back();
      open.pop_back();
      if (!edge.is_valid() || !seen.insert(edge.function.get()).second) continue;
      if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get())) {
        leaves.push_back(leaf->variable);
        continue;
      }
      older_graph = older_graph || !border.inside(edge);
      const auto& next = edge.function->next_edges();
      open.insert(open.end(), next.begin(), next.end());
    }
  }
};

/// The leaves that gradients sent into `roots` reach.
[[nodiscard]] inline std::vector<at::Tensor> leaves_below(const std::vector<at::Tensor>& roots) {
  torch::autograd::edge_list edges;
  for (const at::Tensor& root : roots) {
    if (root.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(root));
  }
  return Reached(edges, GraphBorder()).leaves;
}

}  // namespace refrain::detail
