// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/layout.hpp>
#include <refrain/detail/move_hook.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// The tensor arguments of one call of a region, kept for its replay.
///
/// They are saved as autograd saves tensors, so that a region around this one forgets them too and
/// rebuilds them when they are asked for. An input that the run changes in place is kept as the
/// copy it was at entry.
class RegionInputs {
 public:
  /// Call where the hooks of the enclosing region are in charge. Those that no hook takes wait in
  /// `tier`, if there is one.
  RegionInputs(const std::vector<at::Tensor>& tensors, const TierUse& tier,
               const std::string& region) {
    inputs_.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      inputs_.emplace_back(tensor);
      if (tier) inputs_.back().move_to(tier, region, tensor);
    }
  }

  [[nodiscard]] std::size_t size() const { return inputs_.size(); }

  /// From now on the replay reads `entry`, a detached copy, in place of the input.
  void replace(std::size_t index, at::Tensor entry) {
    Input& input = inputs_[index];
    input.saved.reset_data();
    input.saved = {};
    input.direct = std::move(entry);
    input.copied = true;
  }

  /// The first input that was changed in place since the call, or `size()`.
  [[nodiscard]] std::size_t first_changed() const {
    std::size_t i = 0;
    while (i < inputs_.size() && (inputs_[i].copied || !inputs_[i].version.moved())) ++i;
    return i;
  }

  [[nodiscard]] const VersionMark& version(std::size_t index) const {
    return inputs_[index].version;
  }

  [[nodiscard]] bool required_grad(std::size_t index) const { return inputs_[index].requires_grad; }
  /// And its replay is given the tensor itself.
  [[nodiscard]] bool was_leaf(std::size_t index) const {
    return inputs_[index].is_leaf && !inputs_[index].copied;
  }

  /// The inputs as a run of the region may use them. May replay the enclosing region.
  [[nodiscard]] std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> tensors;
    tensors.reserve(inputs_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) tensors.push_back(tensor(i, tensors));
    return tensors;
  }

 private:
  struct Input {
    torch::autograd::SavedVariable saved;
    at::Tensor direct;  ///< Used instead of `saved`: undefined tensors, inference tensors and entry
                        ///< copies.
    VersionMark version;
    bool is_saved = false;
    bool copied = false;
    bool requires_grad = false;
    bool is_leaf = false;

    explicit Input(const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      requires_grad = tensor.requires_grad();
      is_leaf = tensor.is_leaf();
      if (tensor.is_inference()) {
        direct = tensor;
        return;
      }
      version = VersionMark(tensor);
      saved = torch::autograd::SavedVariable(tensor, /*is_output=*/false);
      is_saved = true;
    }

    void move_to(const TierUse& tier, const std::string& region, const at::Tensor& tensor) {
      if (!is_saved || saved.has_hooks() || !MovedTensor::can_move(tensor, tier)) return;
      saved.register_hooks(std::make_unique<MoveHook>(tier, region, /*checked=*/false));
    }
  };

  [[nodiscard]] at::Tensor tensor(std::size_t index, const std::vector<at::Tensor>& before) const {
    const Input& input = inputs_[index];
    if (!input.copied) return input.is_saved ? input.saved.unpack() : input.direct;
    for (std::size_t j = 0; j < index; ++j) {
      if (inputs_[j].copied && inputs_[j].direct.is_same(input.direct))
        return before[j];  // one tensor, passed twice
    }
    // A copy of the copy, since the replay changes it too; not a leaf, since leaves may not be
    // changed in place.
    const at::AutoGradMode with_grad(true);
    return clone_as_laid_out(input.direct.detach().requires_grad_(input.requires_grad));
  }

  std::vector<Input> inputs_;
};

}  // namespace refrain::detail
