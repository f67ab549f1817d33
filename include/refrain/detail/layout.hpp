// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace refrain::detail {

/// All memory between a tensor's first and last element as one dimension, each element once.
[[nodiscard]] inline at::Tensor span_of(const at::Tensor& tensor) {
  std::int64_t extent = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) extent += (tensor.size(d) - 1) * tensor.stride(d);
  return tensor.as_strided({extent}, {1});
}

/// A copy with the same sizes and strides, gaps and overlaps included, unless most of it would be
/// gaps: then without them. Autograd follows it.
[[nodiscard]] inline at::Tensor clone_as_laid_out(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.numel() == 0 ||
      tensor.is_non_overlapping_and_dense())
    return tensor.clone();
  const at::Tensor span = span_of(tensor);
  if (span.numel() / 2 > tensor.numel()) return tensor.clone();
  return span.clone().as_strided(tensor.sizes(), tensor.strides());
}

}  // namespace refrain::detail
