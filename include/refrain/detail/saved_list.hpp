// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>
#include <refrain/detail/op_log.hpp>
#include <refrain/detail/saves_watcher.hpp>
#include <refrain/detail/storage_set.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/saved_report.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Lists what autograd saves on this thread, which is saved as ever.
class SavedList final : public SavesWatcher {
 public:
  using Names = std::map<const void*, std::string>;  ///< Of parameters, by their memory.

  SavedList(const std::vector<at::Tensor>& inputs, Names names)
      : inputs_(inputs),
        names_(std::move(names)),
        footprint_("explain_saved", none_, Footprint::TrackedWrites::LetPass) {
    footprint_.watch_closely(&log_, /*known=*/nullptr);
  }
  [[nodiscard]] Footprint& footprint() { return footprint_; }
  [[nodiscard]] SavedReport take() { return std::move(report_); }

 private:
  void saved(const at::Tensor& tensor) override {
    SavedTensor entry;
    entry.op = log_.size() == 0 ? "nothing that was seen" : log_.name(log_.size());
    entry.what = shape_text(TensorFacts(tensor));
    entry.bytes = Bytes(bytes_of(tensor));
    const void* const storage = storage_of(tensor);
    entry.kind = kind_of(tensor, storage);
    if (const auto known = names_.find(storage); known != names_.end()) entry.name = known->second;
    const auto [first, is_new] =
        places_.try_emplace(storage, static_cast<std::int64_t>(report_.tensors.size()));
    if (!is_new) entry.shared_with = first->second;
    if (is_new && entry.kind == SavedTensor::Kind::Activation && tensor.has_storage())
      report_.kept += Bytes(static_cast<std::int64_t>(tensor.storage().nbytes()));
    report_.tensors.push_back(std::move(entry));
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
