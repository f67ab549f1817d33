// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/graph_border.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace refrain::detail {

/// How a gradient lies in memory: what a backward makes of it, and so takes, depends on that.
struct GradientLayout {
  std::vector<std::int64_t> strides;  ///< Empty: contiguous.
};
/// Of the tensors of a value that require grad, in their order.
using GradientLayouts = std::vector<std::shared_ptr<GradientLayout>>;

/// Where the part of a graph that is looked at ends: takes a gradient and lets it go.
class GradientSink final : public torch::autograd::Node {
 public:
  /// The same tensor as the result of a sink: no leaf, so nothing is accumulated or copied. It
  /// keeps its memory. `seen` may be null.
  [[nodiscard]] static at::Tensor behind(const at::Tensor& tensor,
                                         std::shared_ptr<GradientLayout> seen) {
    at::Tensor cut = tensor.detach();
    if (!tensor.requires_grad()) return cut;
    const auto sink = make_node<GradientSink>();
    sink->seen_ = std::move(seen);
    const auto input = sink->add_input_metadata(cut);
    torch::autograd::impl::set_gradient_edge(cut, {sink, input});
    return cut;
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (seen_ && gradients.at(0).defined() && gradients[0].layout() == at::kStrided)
      seen_->strides = gradients[0].strides().vec();
    return {};
  }

  std::shared_ptr<GradientLayout> seen_;
};

/// Stands for all that follows some results: its backward makes a gradient for each of them, which
/// nobody else holds. Keeps their graph, not their memory.
class GradientSource final : public torch::autograd::Node {
 public:
  GradientSource(const std::vector<at::Tensor>& results, GradientLayouts layouts)
      : layouts_(std::move(layouts)) {
    at::Tensor asked;
    for (const at::Tensor& result : results) {
      if (!result.requires_grad()) continue;
      add_next_edge(torch::autograd::impl::gradient_edge(result));
      if (!asked.defined()) asked = at::empty({}, result.options());
    }
    if (asked.defined()) add_input_metadata(asked);
  }

  /// Runs the graph of the results backward, with new gradients; the results themselves go first.
  static void run_and_drop(std::vector<at::Tensor> results, GradientLayouts layouts = {},
                           bool keep_graph = false) {
    auto source = make_node<GradientSource>(results, std::move(layouts));
    if (source->num_outputs() == 0) return;
    const at::Tensor asked = source->input_metadata(0).zeros_like();
    results.clear();
    torch::autograd::edge_list roots;
    roots.emplace_back(std::move(source), 0);
    torch::autograd::Engine::get_default_engine().execute(roots, {asked}, keep_graph, false, true);
  }

  /// A gradient of ones.
  static at::Tensor gradient(at::IntArrayRef sizes, const at::TensorOptions& options,
                             const GradientLayout* layout) {
    if (layout == nullptr || layout->strides.size() != sizes.size())
      return at::ones(sizes, options);
    return at::empty_strided(sizes, layout->strides, options).fill_(1);
  }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    const at::NoGradGuard no_grad;
    torch::autograd::variable_list gradients;
    for (const auto& edge : next_edges()) {
      const auto& wanted = edge.function->input_metadata(edge.input_nr);
      const std::size_t place = gradients.size();
      gradients.push_back(gradient(C10_AS_INTARRAYREF_SLOW(wanted.shape_as_dim_vector()),
                                   wanted.options(),
                                   place < layouts_.size() ? layouts_[place].get() : nullptr));
    }
    return gradients;
  }

  GradientLayouts layouts_;
};

}  // namespace refrain::detail
