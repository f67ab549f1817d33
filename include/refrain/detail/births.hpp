// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/pointer_map.hpp>
#include <refrain/detail/tensor_facts.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>

namespace refrain::detail {

/// When the operators of a thread made each tensor and its memory, counted in operators. What they
/// were not seen to make was born before all moments.
class Births {
 public:
  /// A moment after all that was made so far.
  std::int64_t next_moment() { return ++clock_; }
  [[nodiscard]] std::int64_t now() const { return clock_; }

  [[nodiscard]] std::int64_t of(const at::Tensor& tensor) const {
    return born_.find(tensor.unsafeGetTensorImpl());
  }
  [[nodiscard]] std::int64_t of_memory(const void* storage) const { return born_.find(storage); }

  /// An operator begins; then come its arguments, and, once it is done, its results.
  void operator_begins(const c10::FunctionSchema& schema) {
    arguments_.clear();
    running_ = &schema;
  }
  /// The last that began; null before the first.
  [[nodiscard]] const c10::FunctionSchema* running() const { return running_; }
  void argument(const void* storage) { arguments_.push_back(storage); }
  void result(const at::Tensor& tensor) {
    born_.set(tensor.unsafeGetTensorImpl(), clock_);
    if (is_new_memory(tensor)) born_.set(storage_of(tensor), clock_);
  }

 private:
  /// Nobody else holds it, but for autograd, which may hold the memory.
  [[nodiscard]] bool is_new_memory(const at::Tensor& tensor) const {
    if (!tensor.has_storage()) return false;
    if (tensor.storage().use_count() == 1) return true;
    return tensor.use_count() == 1 &&
           std::find(arguments_.begin(), arguments_.end(), storage_of(tensor)) == arguments_.end();
  }

  static constexpr unsigned kUsualArguments = 8;

  PointerMap born_;
  c10::SmallVector<const void*, kUsualArguments> arguments_;  // of the operator that runs
  const c10::FunctionSchema* running_ = nullptr;
  std::int64_t clock_ = 0;
};

}  // namespace refrain::detail
