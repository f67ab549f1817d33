// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>
#include <refrain/detail/op_log.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/storage_set.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/saved_report.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Lists what autograd saves on this thread, which is saved as ever.
class SavedList final : public HookMaker {
 public:
  using Names = std::map<const void*, std::string>;  ///< Of parameters, by their memory.

  SavedList(const std::vector<at::Tensor>& inputs, Names names)
      : inputs_(inputs),
        names_(std::move(names)),
        footprint_("explain_saved", none_, Footprint::TrackedWrites::LetPass) {
    EngineProxy::install();
    footprint_.watch_closely(&log_, /*known=*/nullptr);
  }
  SavedList(const SavedList&) = delete;
  SavedList& operator=(const SavedList&) = delete;
  ~SavedList() = default;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make() override {
    return std::make_unique<Hook>(*this);
  }
  [[nodiscard]] Footprint& footprint() { return footprint_; }
  [[nodiscard]] SavedReport take() { return std::move(report_); }

 private:
  class Hook final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hook(SavedList& list) : list_(&list) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      list_->note(tensor);
      data_ = tensor.tensor_data();
    }
    at::Tensor call_unpack_hook() override { return data_; }

   private:
    SavedList* list_;  // of the run that saves, which is over when the tensor is asked for
    at::Tensor data_;
  };

  void note(const at::Tensor& tensor) {
    SavedTensor saved;
    saved.op = log_.size() == 0 ? "nothing that was seen" : log_.name(log_.size());
    saved.what = shape_text(TensorFacts(tensor));
    saved.bytes = Bytes(bytes_of(tensor));
    const void* const storage = storage_of(tensor);
    saved.kind = kind_of(tensor, storage);
    if (const auto known = names_.find(storage); known != names_.end()) saved.name = known->second;
    const auto [first, is_new] =
        places_.try_emplace(storage, static_cast<std::int64_t>(report_.tensors.size()));
    if (!is_new) saved.shared_with = first->second;
    if (is_new && saved.kind == SavedTensor::Kind::Activation && tensor.has_storage())
      report_.kept += Bytes(static_cast<std::int64_t>(tensor.storage().nbytes()));
    report_.tensors.push_back(std::move(saved));
  }

  [[nodiscard]] SavedTensor::Kind kind_of(const at::Tensor& tensor, const void* storage) const {
    using Kind = SavedTensor::Kind;
    if (inputs_.contains(storage)) return Kind::Input;
    if (names_.contains(storage)) return Kind::Parameter;
    const at::Tensor base = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
    if (!footprint_.is_outside(tensor)) return Kind::Activation;
    return base.is_leaf() && base.requires_grad() ? Kind::Parameter : Kind::Captured;
  }

  StorageSet inputs_;
  Names names_;
  const std::vector<at::Tensor> none_;
  OpLog log_;
  Footprint footprint_;
  std::map<const void*, std::int64_t> places_;
  SavedReport report_;
};

}  // namespace refrain::detail
