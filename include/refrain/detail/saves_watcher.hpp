// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/error.hpp>

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <fmt/format.h>

#include <memory>

namespace refrain::detail {

/// Sees what autograd saves on this thread, which is saved as ever: a tensor that is changed in
/// place before it is asked for is still an error. Hooks that somebody else has set go first.
class SavesWatcher : public HookMaker {
 public:
  SavesWatcher() { EngineProxy::install(); }
  SavesWatcher(const SavesWatcher&) = delete;
  SavesWatcher& operator=(const SavesWatcher&) = delete;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make() final {
    if (!hooks_enabled() || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty())
      return nullptr;
    return std::make_unique<Hook>(*this);
  }

 protected:
  ~SavesWatcher() = default;
  virtual void saved(const at::Tensor& tensor) = 0;

 private:
  class Hook final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hook(SavesWatcher& watcher) : watcher_(&watcher) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      watcher_->saved(tensor);
      version_ = VersionMark(tensor);
      data_ = tensor.tensor_data();
    }
    at::Tensor call_unpack_hook() override {
      if (!version_.moved()) return data_;
      throw Error(
          fmt::format("one of the variables needed for gradient computation has been "
                      "modified by an inplace operation: {} is at version {}; expected "
                      "version {} instead.",
                      to_string(TensorFacts(data_)), version_.now(), version_.then()));
    }

   private:
    SavesWatcher* watcher_;  // of the run that saves, which is over when the tensor is asked for
    VersionMark version_;
    at::Tensor data_;
  };
};

}  // namespace refrain::detail
