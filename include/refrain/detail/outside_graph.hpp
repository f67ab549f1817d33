// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <unordered_set>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Keeps from the graph outside a region what its replay would do to it a second time: hooks
/// registered on tensors from outside, and gradients that a `backward()` in the body adds to leaves
/// from outside.
class OutsideGraphScope {
 public:
  OutsideGraphScope() : before_(std::exchange(innermost_, this)) {}
  ~OutsideGraphScope() {
    innermost_ = before_;
    for (const auto& [tensor, hooks] : tensors_) {
      const auto& list = hooks_of(tensor);
      if (list != nullptr && list->size() > hooks) list->resize(hooks);
    }
  }
  OutsideGraphScope(const OutsideGraphScope&) = delete;
  OutsideGraphScope& operator=(const OutsideGraphScope&) = delete;

  /// Call before the replay, for each tensor from outside.
  void guard(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad()) return;
    const auto& list = hooks_of(tensor);
    tensors_.emplace_back(tensor, list == nullptr ? 0 : list->size());
  }

  /// Of the replay that runs on this thread, or null.
  [[nodiscard]] static const OutsideGraphScope* innermost() { return innermost_; }

  /// The leaves, as edges, that gradients sent from `roots` would be added to, but for those from
  /// outside; `among` names all that may be if it is not empty.
  [[nodiscard]] torch::autograd::edge_list leaves_inside(
      const torch::autograd::edge_list& roots, const torch::autograd::edge_list& among) const {
    std::unordered_set<const torch::autograd::Node*> outside;
    for (const auto& [tensor, hooks] : tensors_) {
      if (tensor.is_leaf())
        outside.insert(torch::autograd::impl::try_get_grad_accumulator(tensor).get());
    }
    torch::autograd::edge_list inside = among.empty() ? leaves_below(roots) : among;
    std::erase_if(inside, [&](const auto& edge) { return outside.contains(edge.function.get()); });
    return inside;
  }

 private:
  using HookList = decltype(torch::autograd::AutogradMeta::cpp_hooks_list_);

  // What `register_hook` appends to; null before the first.
  static const HookList& hooks_of(const at::Tensor& tensor) {
    return torch::autograd::impl::get_autograd_meta(tensor)->cpp_hooks_list_;
  }

  static torch::autograd::edge_list leaves_below(const torch::autograd::edge_list& roots) {
    torch::autograd::edge_list leaves;
    torch::autograd::edge_list open = roots;
    std::unordered_set<const torch::autograd::Node*> seen;
    while (!open.empty()) {
      const torch::autograd::Edge edge = std::move(open.back());
      open.pop_back();
      if (!edge.is_valid() || !seen.insert(edge.function.get()).second) continue;
      if (dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get()) != nullptr)
        leaves.push_back(edge);
      const auto& next = edge.function->next_edges();
      open.insert(open.end(), next.begin(), next.end());
    }
    return leaves;
  }

  static inline constinit thread_local const OutsideGraphScope* innermost_ = nullptr;

  const OutsideGraphScope* before_;
  std::vector<std::pair<at::Tensor, std::size_t>> tensors_;  ///< And how many hooks each has.
};

}  // namespace refrain::detail
