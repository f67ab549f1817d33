// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>
#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/graph_border.hpp>
#include <refrain/detail/graph_ends.hpp>
#include <refrain/detail/outside_state.hpp>
#include <refrain/detail/outside_tensors.hpp>
#include <refrain/detail/reached.hpp>
#include <refrain/detail/step_trace.hpp>
#include <refrain/detail/step_undone.hpp>
#include <refrain/detail/tensor_difference.hpp>
#include <refrain/visit_tensors.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace refrain::detail {

/// A forward and a backward pass of a thing that leave nothing behind: gradients, buffers and
/// random generators come back.
template <class Thing, class... Inputs>
class LintStep {
 public:
  /// Calls the thing once, to see what it writes.
  LintStep(Thing& thing, const std::vector<at::Generator>& generators, const Inputs&... inputs)
      : thing_(thing), undone_(generators), inputs_(inputs...) {
    const Owned owned = Owned::of(thing_);
    for (const NamedTensor& buffer : owned.buffers)
      entries_.push_back({buffer.tensor.detach(), buffer.tensor.detach().clone()});
    buffers_.emplace(entries_);
    for (const NamedTensor& parameter : owned.parameters) gradients_.add(parameter.tensor);
    const Footprint::Scope watched(&undone_.footprint());
    const at::AutoGradMode as_in_training(true);
    (void)call();
    gradients_.drop_new();
  }

  /// One step, with gradients of ones of all results. Buffers of the model that changed in the
  /// backward pass are then in `changed()`.
  void run() {
    const at::AutoGradMode as_in_training(true);
    changed_.clear();
    const GraphBorder border;
    std::vector<at::Tensor> roots;
    {
      auto result = call();
      for_each_tensor_in(result, [&roots](at::Tensor& tensor) {
        if (tensor.defined() && tensor.requires_grad()) roots.push_back(tensor);
      });
    }
    torch::autograd::edge_list edges;
    for (const at::Tensor& root : roots)
      edges.push_back(torch::autograd::impl::gradient_edge(root));
    const Reached reached(edges, border);
    edges.clear();
    for (const at::Tensor& leaf : reached.leaves) gradients_.add(leaf);
    const Owned owned = Owned::of(thing_);
    std::vector<at::Tensor> before;
    for (const NamedTensor& buffer : owned.buffers)
      before.push_back(buffer.tensor.detach().clone());
    GradientSource::run_and_drop(std::move(roots), {}, reached.older_graph);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::string how = difference_between(before[i], owned.buffers[i].tensor.detach(), 0);
      if (!how.empty()) changed_.emplace_back(owned.buffers[i].name, how);
    }
    gradients_.drop_new();
  }

  /// Name of a buffer, and how it changed.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& changed() const {
    return changed_;
  }

 private:
  auto call() {
    auto inputs = inputs_;
    // Gradients end here, whatever graph an input has.
    for_each_tensor_in(inputs, [](at::Tensor& tensor) {
      if (tensor.defined()) tensor = GradientSink::behind(tensor, nullptr);
    });
    return std::apply([this](auto&... input) { return call_thing(thing_, input...); }, inputs);
  }

  Thing& thing_;
  GradientsAside gradients_;  // a forward may call backward itself
  std::vector<OutsideWrite> entries_;
  std::optional<OutsideStateScope> buffers_;  // one call may write what another does not
  StepUndone undone_;
  std::tuple<std::decay_t<Inputs>...> inputs_;
  std::vector<std::pair<std::string, std::string>> changed_;
};

}  // namespace refrain::detail
