// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/storage_set.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <utility>

namespace refrain::detail {

/// Notes the memory of all that autograd saves on this thread, which is saved as ever.
class SavedStorages final : public HookMaker {
 public:
  SavedStorages() { EngineProxy::install(); }
  SavedStorages(const SavedStorages&) = delete;
  SavedStorages& operator=(const SavedStorages&) = delete;
  ~SavedStorages() = default;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make() override {
    return std::make_unique<Hook>(storages_);
  }
  [[nodiscard]] StorageSet& storages() { return storages_; }

 private:
  class Hook final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hook(StorageSet& storages) : storages_(&storages) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      storages_->add(tensor);
      data_ = tensor.tensor_data();
    }
    at::Tensor call_unpack_hook() override { return data_; }

   private:
    StorageSet* storages_;  // of the run that saves, which is over when the tensor is asked for
    at::Tensor data_;
  };

  StorageSet storages_;
};

}  // namespace refrain::detail
