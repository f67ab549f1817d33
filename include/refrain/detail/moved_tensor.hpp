// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/memory_view.hpp>
#include <refrain/detail/move_line.hpp>
#include <refrain/detail/moved_storage.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

namespace refrain::detail {

/// One tensor that is kept for backward in a tier, if its memory can go there: it comes back with
/// its own sizes and strides, and shares memory with whatever it shared it with.
class MovedTensor {
 public:
  MovedTensor(const at::Tensor& tensor, const TierUse& use, const std::string& region) {
    if (!can_move(tensor, use)) {
      stays_ = tensor.defined() && !tensor.is_inference() ? tensor.tensor_data() : tensor;
      return;
    }
    keys_ = tensor.key_set();
    dtype_ = tensor.dtype();
    sizes_ = tensor.sizes();
    strides_ = tensor.strides();
    offset_ = tensor.storage_offset();
    line_ = MoveLine::current();
    memory_ = line_->hold(tensor, range(), use.tier, region);
  }
  ~MovedTensor() {
    if (memory_ != nullptr) memory_->remove_reader(had_);
  }
  MovedTensor(MovedTensor&&) = default;
  MovedTensor& operator=(MovedTensor&&) = delete;
  MovedTensor(const MovedTensor&) = delete;
  MovedTensor& operator=(const MovedTensor&) = delete;

  /// Not what something else keeps alive by design, nor what is more, or less, than plain memory
  /// seen through sizes and strides.
  [[nodiscard]] static bool can_move(const at::Tensor& tensor, const TierUse& use) {
    if (!tensor.defined() || tensor.is_inference() || tensor.numel() == 0) return false;
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (typeid(impl) != typeid(c10::TensorImpl) || !tensor.has_storage() ||
        tensor.layout() != at::kStrided || tensor.is_quantized() || has_names(tensor) ||
        impl.has_symbolic_sizes_strides() || tensor.is_meta() || tensor._is_zerotensor() ||
        tensor.key_set().has_any(c10::python_ks))
      return false;
    if (static_cast<std::int64_t>(tensor.storage().nbytes()) < use.smallest.count()) return false;
    return !is_leaf_with_gradient(tensor) &&
           !(tensor.is_view() && is_leaf_with_gradient(tensor._base()));
  }

  /// Without a graph. What was moved just before it is on its way back then, too. Throws
  /// `TierError`.
  [[nodiscard]] at::Tensor get() const {
    if (memory_ == nullptr) return stays_;
    MovedStorage::Lent lent = memory_->get(had_);
    line_->fetch_before(*memory_);
    const auto size = static_cast<std::int64_t>(dtype_.itemsize());
    return tensor_in(std::move(lent.storage), keys_, dtype_, sizes_, strides_,
                     offset_ - lent.begin / size);
  }

 private:
  [[nodiscard]] static bool is_leaf_with_gradient(const at::TensorBase& tensor) {
    return tensor.requires_grad() && tensor.is_leaf();
  }

  /// False in a LibTorch that no longer knows names.
  template <class Tensor>
  [[nodiscard]] static bool has_names(const Tensor& tensor) {
    if constexpr (requires { tensor.has_names(); }) {
      return tensor.has_names();
    } else {
      return false;
    }
  }

  /// From its first element to its last.
  [[nodiscard]] MovedStorage::Range range() const {
    std::int64_t last = offset_;
    for (std::size_t i = 0; i < sizes_.size(); ++i) last += (sizes_[i] - 1) * strides_[i];
    const auto size = static_cast<std::int64_t>(dtype_.itemsize());
    return {offset_ * size, (last + 1) * size};
  }

  at::Tensor stays_;  ///< What cannot move.
  std::shared_ptr<MoveLine> line_;
  std::shared_ptr<MovedStorage> memory_;
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::SmallVector<std::int64_t, 5> sizes_;
  c10::SmallVector<std::int64_t, 5> strides_;
  std::int64_t offset_ = 0;
  mutable int had_ = 0;  ///< The last return of the memory that this has seen.
};

}  // namespace refrain::detail
