// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

namespace refrain::detail {

/// The gradients of some leaves as a step finds them, and afterwards as they were: none, or, where
/// there is one or an earlier stage of the backward has made one, zeros.
class LeafGradients {
 public:
  void add(const at::Tensor& leaf, bool made_before) {
    const bool exists = made_before || leaf.grad().defined();
    leaves_.push_back({leaf, leaf.grad(), exists});
    leaf.mutable_grad() = exists ? at::zeros_like(leaf) : at::Tensor();
  }
  void reset() {
    for (const Leaf& leaf : leaves_) {
      if (!leaf.exists) leaf.tensor.mutable_grad() = at::Tensor();
    }
  }

  LeafGradients() = default;
  LeafGradients(const LeafGradients&) = delete;
  LeafGradients& operator=(const LeafGradients&) = delete;
  ~LeafGradients() {
    for (const Leaf& leaf : leaves_) leaf.tensor.mutable_grad() = leaf.before;
  }

 private:
  struct Leaf {
    at::Tensor tensor;
    at::Tensor before;
    bool exists;
  };
  std::vector<Leaf> leaves_;
};

}  // namespace refrain::detail
