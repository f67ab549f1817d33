// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <utility>

/// Tensors made upon memory that is there, whatever device it is on and without asking an operator.
namespace refrain::detail {

/// One that lies in `storage` from `offset` on, in elements.
[[nodiscard]] inline at::Tensor tensor_in(c10::Storage storage, c10::DispatchKeySet keys,
                                          caffe2::TypeMeta dtype, at::IntArrayRef sizes,
                                          at::IntArrayRef strides, std::int64_t offset) {
  auto tensor = at::Tensor(
      c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), keys, dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

/// The memory of a flat contiguous tensor, as another dtype. Its size must be a multiple of that.
[[nodiscard]] inline at::Tensor flat_as(const at::Tensor& flat, caffe2::TypeMeta dtype) {
  const auto before = static_cast<std::int64_t>(flat.itemsize());
  const auto after = static_cast<std::int64_t>(dtype.itemsize());
  return tensor_in(flat.storage(), flat.key_set(), dtype, {flat.numel() * before / after}, {1},
                   flat.storage_offset() * before / after);
}

[[nodiscard]] inline at::Tensor as_bytes(const at::Tensor& flat) {
  return flat_as(flat, caffe2::TypeMeta::Make<std::uint8_t>());
}

}  // namespace refrain::detail
