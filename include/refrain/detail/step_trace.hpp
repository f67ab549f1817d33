// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>
#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/graph_border.hpp>
#include <refrain/detail/outside_state.hpp>
#include <refrain/detail/random_state.hpp>
#include <refrain/detail/reached.hpp>
#include <refrain/detail/step_meter.hpp>
#include <refrain/detail/surroundings.hpp>
#include <refrain/detail/tensor_difference.hpp>
#include <refrain/verify_report.hpp>
#include <refrain/visit_tensors.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// A tensor under the name by which a report calls it.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What one step left behind.
struct StepTrace {
  std::vector<NamedTensor> outputs;
  std::vector<NamedTensor> input_gradients;
  std::vector<NamedTensor> gradients;
  std::vector<NamedTensor> buffers;
  std::vector<RandomState> generators;
  StepCost cost;
  std::string error;
};

/// Gives the gradient that is sent into an output: no two elements alike, so that none cancel.
[[nodiscard]] inline at::Tensor probe_gradient(const at::Tensor& output) {
  const at::NoGradGuard no_grad;
  return (at::arange(output.numel(), output.options().dtype(at::kDouble)).sin() + 1.5)
      .reshape(output.sizes())
      .to(output.scalar_type());
}

/// Empties the gradients of leaves while it lives, and puts back what was there.
class GradientsAside {
 public:
  void add(const at::Tensor& leaf) {
    for (const auto& [known, gradient] : kept_) {
      if (known.is_same(leaf)) return;
    }
    kept_.emplace_back(leaf, leaf.grad());
    leaf.mutable_grad() = at::Tensor();
  }
  /// Empties them again.
  void drop_new() {
    for (auto& [leaf, gradient] : kept_) leaf.mutable_grad() = at::Tensor();
  }
  GradientsAside() = default;
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;
  ~GradientsAside() {
    for (auto& [leaf, gradient] : kept_) leaf.mutable_grad() = gradient;
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

/// Everything in a thing to be verified that a step may change, found where the thing is made of
/// modules.
struct Owned {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;

  void add(const torch::nn::Module& module, const std::string& prefix = {}) {
    for (const auto& item : module.named_parameters())
      parameters.push_back({prefix + item.key(), item.value()});
    for (const auto& item : module.named_buffers())
      buffers.push_back({prefix + item.key(), item.value()});
  }

  template <class Thing>
  static Owned of(Thing& thing) {
    Owned owned;
    if constexpr (Holder<Thing>) {
      owned.add(*thing);
    } else if constexpr (Module<Thing>) {
      owned.add(thing);
    } else if constexpr (requires { thing.layers(); }) {
      std::size_t i = 0;
      for (auto layer : thing.layers()) {
        if constexpr (Holder<decltype(layer)>) owned.add(*layer, fmt::format("{}.", i));
        ++i;
      }
    }
    return owned;
  }
};

}  // namespace refrain::detail
