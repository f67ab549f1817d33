// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/tensor_facts.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace refrain::detail {

/// The memory of tensors, each storage once, without holding it.
class StorageSet {
 public:
  StorageSet() = default;
  explicit StorageSet(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) add(tensor);
  }

  void add(const at::Tensor& tensor) {
    if (!tensor.has_storage() || contains(storage_of(tensor))) return;
    storages_.push_back({storage_of(tensor), static_cast<std::int64_t>(tensor.storage().nbytes()),
                         Weak(tensor.storage().getWeakStorageImpl())});
  }

  [[nodiscard]] bool contains(const void* storage) const {
    return std::any_of(storages_.begin(), storages_.end(),
                       [storage](const One& one) { return one.address == storage; });
  }
  void remove(const StorageSet& other) {
    std::erase_if(storages_, [&other](const One& one) { return other.contains(one.address); });
  }
  void keep_only(const StorageSet& other) {
    std::erase_if(storages_, [&other](const One& one) { return !other.contains(one.address); });
  }
  void add(const StorageSet& other) {
    for (const One& one : other.storages_) {
      if (!contains(one.address)) storages_.push_back(one);
    }
  }
  [[nodiscard]] bool empty() const { return storages_.empty(); }
  /// Of each.
  [[nodiscard]] std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> sizes;
    for (const One& one : storages_) sizes.push_back(one.bytes);
    return sizes;
  }
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const One& one : storages_) sum += one.bytes;
    return sum;
  }
  /// Of those that nobody holds any more.
  [[nodiscard]] std::int64_t bytes_gone() const {
    std::int64_t sum = 0;
    for (const One& one : storages_) sum += one.weak.expired() ? one.bytes : 0;
    return sum;
  }
  /// Calls `visit(address, bytes, alive)` for each.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const One& one : storages_) visit(one.address, one.bytes, !one.weak.expired());
  }
  /// Which of them somebody still holds.
  [[nodiscard]] std::vector<bool> alive() const {
    std::vector<bool> alive;
    for (const One& one : storages_) alive.push_back(!one.weak.expired());
    return alive;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct One {
    const void* address;
    std::int64_t bytes;
    Weak weak;
  };
  std::vector<One> storages_;
};

}  // namespace refrain::detail
