// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/input_entries.hpp>
#include <refrain/detail/tensor_facts.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::detail {

/// What captured tensors look like around the operator that writes them. Their contents can be put
/// back for a replay; their sizes, and where their memory lies, cannot.
class WrittenShapes {
 public:
  void clear() { written_.clear(); }

  /// Call before the operator. An empty tensor may grow: it holds nothing.
  void note(const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.numel() == 0) return;
    written_.push_back({tensor, tensor.sizes().vec(), tensor.strides().vec(), storage_of(tensor),
                        tensor.requires_grad()});
  }

  /// Call after it. Throws `Error` if a noted tensor looks otherwise now.
  void refuse_changes(std::string_view region) {
    if (written_.empty()) return;
    const std::vector<Written> written = std::exchange(written_, {});
    for (const Written& then : written) {
      if (then.tensor.sizes() != then.sizes || then.tensor.strides() != then.strides ||
          storage_of(then.tensor) != then.storage) {
        refuse_write(region, then.tensor, "changes the shape or memory of a captured tensor");
      }
      if (then.tensor.requires_grad() && !then.required_grad) {
        refuse_write(region, then.tensor, "makes a captured tensor part of the graph");
      }
    }
  }

 private:
  struct Written {
    at::Tensor tensor;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    const void* storage;
    bool required_grad;
  };

  std::vector<Written> written_;
};

}  // namespace refrain::detail
