// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/saves_watcher.hpp>
#include <refrain/detail/storage_set.hpp>

#include <ATen/core/Tensor.h>

namespace refrain::detail {

/// Notes the memory of all that autograd saves on this thread.
class SavedStorages final : public SavesWatcher {
 public:
  [[nodiscard]] StorageSet& storages() { return storages_; }

 private:
  void saved(const at::Tensor& tensor) override { storages_.add(tensor); }

  StorageSet storages_;
};

}  // namespace refrain::detail
