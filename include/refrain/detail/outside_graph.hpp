// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/graph_border.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Keeps from the graph outside a region what its replay would do to it a second time: hooks
/// registered on tensors from outside, and gradients that a `backward()` in the body sends there.
class OutsideGraphScope {
 public:
  OutsideGraphScope() : before_(std::exchange(innermost_, this)) {}
  ~OutsideGraphScope() {
    innermost_ = before_;
    for (const Guarded& guarded : tensors_) guarded.put_hooks_back();
  }
  OutsideGraphScope(const OutsideGraphScope&) = delete;
  OutsideGraphScope& operator=(const OutsideGraphScope&) = delete;

  /// Call before the replay, for each tensor from outside.
  void guard(const at::Tensor& tensor) {
    if (tensor.defined() && tensor.requires_grad()) tensors_.emplace_back(tensor);
  }

  /// Of the replay that runs on this thread, or null.
  [[nodiscard]] static const OutsideGraphScope* innermost() { return innermost_; }

  class InnerPass;

 private:
  using Hooks = decltype(torch::autograd::AutogradMeta::cpp_hooks_list_)::element_type;

  struct Guarded {
    at::Tensor tensor;
    Hooks hooks_then;

    explicit Guarded(const at::Tensor& value) : tensor(value) {
      if (const Hooks* const hooks = hooks_now()) hooks_then = *hooks;
    }

    /// What `register_hook` appends to; null before the first. Removed ones are empty.
    [[nodiscard]] Hooks* hooks_now() const {
      return torch::autograd::impl::get_autograd_meta(tensor)->cpp_hooks_list_.get();
    }

    /// Lets as many hooks go as the replay added. Where it also took some away, its new ones stand
    /// for them: the body may hold their handles. One by one: a hook that runs may have asked for
    /// this replay.
    void put_hooks_back() const {
      Hooks* const hooks = hooks_now();
      if (hooks == nullptr) return;
      const std::size_t then = hooks_then.size();
      std::size_t stand_in = 0;
      for (std::size_t i = 0; i < then; ++i) stand_in += hooks_then[i] && !(*hooks)[i] ? 1 : 0;
      for (std::size_t i = hooks->size(); i-- > then;) {
        if (!(*hooks)[i]) continue;
        if (stand_in > 0) {
          --stand_in;
        } else {
          (*hooks)[i] = nullptr;
        }
      }
      for (std::size_t i = then; i-- > 0 && stand_in > 0;) {
        if (!hooks_then[i] || (*hooks)[i]) continue;
        (*hooks)[i] = hooks_then[i];
        --stand_in;
      }
    }
  };

  static constexpr unsigned kUsualTensors = 8;
  static inline constinit thread_local const OutsideGraphScope* innermost_ = nullptr;

  const OutsideGraphScope* before_;
  GraphBorder border_;
  c10::SmallVector<Guarded, kUsualTensors> tensors_;
};

/// A `backward()` as a replay may run it: through the graph that the replay made, to leaves that it
/// made. While this lives that graph ends where the graph outside begins.
class OutsideGraphScope::InnerPass {
 public:
  using Edges = torch::autograd::edge_list;
  using Tensors = torch::autograd::variable_list;

  /// The pass that was asked for; `inputs` names all leaves to reach if it is not empty.
  InnerPass(const OutsideGraphScope& outside, const Edges& roots, const Tensors& gradients,
            const Edges& inputs)
      : border_(outside.border_) {
    for (const Guarded& guarded : outside.tensors_) {
      if (!guarded.tensor.is_leaf()) continue;
      leaves_outside_.insert(torch::autograd::impl::try_get_grad_accumulator(guarded.tensor).get());
    }
    for (std::size_t i = 0; i < roots.size(); ++i) {
      if (!is_inner(roots[i])) continue;
      roots_.push_back(roots[i]);
      gradients_.push_back(gradients[i]);
    }
    for (const auto& input : inputs) {
      if (is_inner(input)) inputs_.push_back(input);
    }
    empty_ = roots_.empty() || (inputs_.empty() && !inputs.empty());
    auto crossings = border_.crossings_below(roots_);
    std::erase_if(crossings, [this](const GraphBorder::Crossing& crossing) {
      return is_inner(crossing.from->next_edge(crossing.index));
    });
    cut_.emplace(crossings, GraphBorder::targets_of(crossings));
  }

  /// Whether it would reach nothing.
  [[nodiscard]] bool empty() const { return empty_; }
  [[nodiscard]] const Edges& roots() const { return roots_; }
  [[nodiscard]] const Tensors& gradients() const { return gradients_; }
  [[nodiscard]] const Edges& inputs() const { return inputs_; }

 private:
  [[nodiscard]] bool is_inner(const torch::autograd::Edge& edge) const {
    if (border_.inside(edge)) return true;
    const bool is_leaf =
        dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get()) != nullptr;
    return is_leaf && !leaves_outside_.contains(edge.function.get());
  }

  const GraphBorder& border_;
  std::unordered_set<const torch::autograd::Node*> leaves_outside_;
  Edges roots_;
  Tensors gradients_;
  Edges inputs_;
  bool empty_ = false;
  std::optional<BorderCut> cut_;
};

}  // namespace refrain::detail
