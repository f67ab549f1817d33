// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>
#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/graph_ends.hpp>
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
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// A forward and a backward pass of a thing that leave nothing behind: gradients, buffers and
/// random generators come back.
template <class Thing, class... Inputs>
class LintStep {
 public:
  /// Calls the thing once, without grad mode, to see what it writes.
  LintStep(Thing& thing, const std::vector<at::Generator>& generators, const Inputs&... inputs)
      : thing_(thing), undone_(generators), inputs_(inputs...) {
    const Footprint::Scope watched(&undone_.footprint());
    const at::NoGradGuard no_grad;
    std::apply([this](auto... input) { (void)call_thing(thing_, input...); }, inputs_);
  }

  /// One step, with gradients of ones of all results. `buffers` of the model, changed in the
  /// backward pass, are then in `changed()`.
  void run() {
    const at::AutoGradMode as_in_training(true);
    changed_.clear();
    std::vector<at::Tensor> roots;
    {
      auto result =
          std::apply([this](auto... input) { return call_thing(thing_, input...); }, inputs_);
      for_each_tensor_in(result, [&roots](at::Tensor& tensor) {
        if (tensor.defined() && tensor.requires_grad()) roots.push_back(tensor);
      });
    }
    GradientsAside gradients;
    for (const at::Tensor& leaf : leaves_below(roots)) gradients.add(leaf);
    const Owned owned = Owned::of(thing_);
    std::vector<at::Tensor> before;
    for (const NamedTensor& buffer : owned.buffers)
      before.push_back(buffer.tensor.detach().clone());
    GradientSource::run_and_drop(std::move(roots));
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::string how = difference_between(before[i], owned.buffers[i].tensor.detach(), 0);
      if (!how.empty()) changed_.emplace_back(owned.buffers[i].name, how);
    }
  }

  /// Name of a buffer, and how it changed.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& changed() const {
    return changed_;
  }

 private:
  Thing& thing_;
  StepUndone undone_;
  std::tuple<std::decay_t<Inputs>...> inputs_;
  std::vector<std::pair<std::string, std::string>> changed_;
};

}  // namespace refrain::detail
