// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/tensor_facts.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/util/intrusive_ptr.h>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// A tensor from outside that a run read: a replay is exact only while it is unchanged.
struct OutsideRead {
  VersionMark version;
  // Weak: keeps the address from being used again, which would make a new tensor look like this
  // one; no storage.
  WeakTensor tensor;
  const void* storage;
  const c10::FunctionSchema* op;
  std::size_t argument;
  bool required_grad;
  // An operator may go; then its schema is gone.
  std::uint64_t operators_removed = OpTap::operators_removed();

  /// Whether the tensor is there and has other memory now.
  [[nodiscard]] bool was_replaced() const {
    const auto alive = tensor.lock();
    return alive && storage_of(at::Tensor(alive)) != storage;
  }
};

/// A tensor from outside that a run wrote where autograd does not look (a buffer), and what it held
/// before.
struct OutsideWrite {
  at::Tensor live;       ///< Shares storage and version with the tensor.
  at::Tensor entry;      ///< What it held before the run's first write.
  bool counted = false;  ///< The write moves the version.
  // Set where the storage does not own its memory (`from_blob`): who may have made it for this run
  // alone.
  std::optional<WeakTensor> lender = std::nullopt;

  [[nodiscard]] bool memory_is_there() const { return !lender || !lender->expired(); }
};

[[nodiscard]] inline std::vector<const void*> storages_of(const std::vector<OutsideWrite>& writes) {
  std::vector<const void*> storages;
  storages.reserve(writes.size());
  for (const OutsideWrite& write : writes) storages.push_back(storage_of(write.live));
  return storages;
}

/// "float32[4, 4] on cpu (argument `other` of aten::add)"
[[nodiscard]] inline std::string to_string(const OutsideRead& read) {
  std::string what = "a tensor that is gone now";
  if (const auto alive = read.tensor.lock()) what = to_string(TensorFacts(at::Tensor(alive)));
  if (read.operators_removed != OpTap::operators_removed()) return what;
  return fmt::format("{} (argument `{}` of {})", what, read.op->arguments()[read.argument].name(),
                     read.op->name());
}

}  // namespace refrain::detail
