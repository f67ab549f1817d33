// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/layout.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/error.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <fmt/format.h>

#include <cstddef>
#include <string_view>
#include <vector>

namespace refrain::detail {

[[noreturn]] inline void refuse_write(std::string_view region, const at::Tensor& tensor,
                                      std::string_view what) {
  throw Error(fmt::format("`{}` {}, {}, in place.", region, what, to_string(TensorFacts(tensor))),
              "a replay could not read what it held before.",
              "pass the tensor as one argument of the region, or write to a clone of it.");
}

/// A region's tensor arguments, and what those that its run changes in place held before: the
/// replay reads these copies.
class InputEntries {
 public:
  /// `inputs` must outlive this.
  explicit InputEntries(const std::vector<at::Tensor>& inputs)
      : inputs_(inputs), entries_(inputs.size()) {}

  /// Undefined for an argument that the run left alone.
  [[nodiscard]] const at::Tensor& entry(std::size_t index) const { return entries_[index]; }

  [[nodiscard]] bool contains(const c10::TensorImpl* impl) const {
    for (const at::Tensor& input : inputs_) {
      if (input.unsafeGetTensorImpl() == impl) return true;
    }
    return false;
  }

  /// An argument in `storage` that was changed, or null.
  [[nodiscard]] const at::Tensor* changed_in(const void* storage) const {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (entries_[i].defined() && storage_of(inputs_[i]) == storage) return &inputs_[i];
    }
    return nullptr;
  }

  /// Call before `storage` is written. True if an argument lives in it: its contents are kept.
  /// Throws `Error` if two arguments share it, whose copies would not.
  bool keep_entry(std::string_view region, const void* storage) {
    const at::Tensor* kept = nullptr;
    const at::Tensor* entry = nullptr;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].defined() || storage_of(inputs_[i]) != storage) continue;
      if (kept == nullptr) {
        kept = &inputs_[i];
        entry = &entries_[i];
        if (!entry->defined()) entries_[i] = clone_as_laid_out(kept->detach());
      } else if (inputs_[i].is_same(*kept)) {
        entries_[i] = *entry;
      } else {
        refuse_write(region, inputs_[i], "changes two arguments that share memory");
      }
    }
    return kept != nullptr;
  }

 private:
  const std::vector<at::Tensor>& inputs_;
  std::vector<at::Tensor> entries_;  ///< As many as inputs.
};

}  // namespace refrain::detail
