// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/outside_tensors.hpp>
#include <refrain/detail/region_inputs.hpp>
#include <refrain/detail/tensor_facts.hpp>

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace refrain::detail {

/// Leaves that were frozen or thawed since a first run read them. A replay with them as they are
/// now would save other tensors.
class FrozenSince {
  struct Leaf {
    at::Tensor tensor;
    bool requires_grad;  ///< As it is not now.
  };

 public:
  /// `tensors`: those of `inputs`.
  FrozenSince(const std::vector<OutsideRead>& reads, const RegionInputs& inputs,
              const std::vector<at::Tensor>& tensors) {
    for (const OutsideRead& read : reads) {
      if (const auto alive = read.tensor.lock()) note(at::Tensor(alive), read.required_grad);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].defined() && inputs.was_leaf(i)) note(tensors[i], inputs.required_grad(i));
    }
  }

  void add_to(std::vector<const void*>& things) const {
    for (const Leaf& leaf : leaves_) things.push_back(storage_of(leaf.tensor));
  }

  /// While it lives they are as they were. Where other replays may do the same, take a `Turn`
  /// first.
  class Scope {
   public:
    explicit Scope(const FrozenSince& since) : leaves_(since.leaves_) {
      for (Leaf& leaf : leaves_) {
        const bool now = leaf.tensor.requires_grad();
        leaf.tensor.set_requires_grad(std::exchange(leaf.requires_grad, now));
      }
    }
    ~Scope() {
      for (const Leaf& leaf : leaves_) leaf.tensor.set_requires_grad(leaf.requires_grad);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::vector<Leaf> leaves_;
  };

 private:
  void note(const at::Tensor& tensor, bool then) {
    if (tensor.is_leaf() && tensor.requires_grad() != then) leaves_.push_back({tensor, then});
  }

  std::vector<Leaf> leaves_;
};

}  // namespace refrain::detail
