// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/other_path.hpp>
#include <refrain/detail/tensor_facts.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace refrain::detail {

/// One tensor that autograd would have kept: forgotten in the first run, rebuilt by the replay.
struct Slot {
  TensorFacts facts;
  VersionMark version;
  at::Tensor rebuilt;
  std::uint32_t rebuilt_at = 0;  ///< The version of `rebuilt` when it was saved.
  bool wanted = true;            ///< Its node has not finished, or been freed, yet.

  explicit Slot(const at::Tensor& tensor) : facts(tensor), version(tensor) {}

  void fill(at::Tensor value) {
    rebuilt = std::move(value);
    rebuilt_at = version_of(rebuilt);
  }

  /// Keeps the values and lets the graph go that they came from. In place, without a new tensor,
  /// where nobody else holds this one.
  void leave_graph() {
    if (!rebuilt.defined()) return;
    c10::TensorImpl* const impl = rebuilt.unsafeGetTensorImpl();
    if (impl->autograd_meta() == nullptr) return;
    if (rebuilt.use_count() == 1) {
      impl->set_autograd_meta(nullptr);
    } else {
      rebuilt = rebuilt.tensor_data();
    }
  }
};

/// Compares what a replay saves with what the first run saved, and says where they part.
class SlotComparison {
 public:
  SlotComparison(const std::deque<Slot>& slots, bool enabled)
      : slots_(slots), enabled_(enabled), expected_(slots.size()) {}

  /// The place of the tensor that the replay saves now. Equal so far, or past the first difference.
  std::size_t next(const at::Tensor& tensor) {
    const std::size_t index = saved_++;
    if (enabled_ && !first_ && (index >= expected_ || !slots_[index].facts.describe(tensor))) {
      first_ = Difference{index, to_string(TensorFacts(tensor))};
    }
    return index;
  }

  [[nodiscard]] bool equal_so_far() const { return !first_; }
  [[nodiscard]] std::size_t expected() const { return expected_; }

  /// After a replay that ran to its end. `thrown`: what the body threw, if it did.
  [[nodiscard]] bool differs() const { return first_.has_value() || saved_ != expected_; }

  [[noreturn]] void fail(const std::string& region, const std::string& thrown) const {
    const std::string counts =
        saved_ != expected_
            ? fmt::format("replay of `{}` saved {} tensor{}, the first run saved {}.", region,
                          saved_, saved_ == 1 ? "" : "s", expected_)
            : fmt::format("replay of `{}` saved other tensors than the first run ({} in both).",
                          region, saved_);
    fail_other_path(
        counts, where(),
        thrown.empty() ? std::string() : fmt::format("then the replay threw: {}", thrown));
  }

 private:
  struct Difference {
    std::size_t slot;
    std::string got;
  };

  [[nodiscard]] std::string where() const {
    const std::size_t slot = first_ ? first_->slot : saved_;
    if (slot >= expected_) {
      return fmt::format("first difference at slot {}: expected no more, got {}", slot,
                         first_->got);
    }
    const std::string expected = to_string(slots_[slot].facts);
    return fmt::format("first difference at slot {}: expected {}, got {}", slot, expected,
                       first_ ? first_->got : std::string("nothing more"));
  }

  const std::deque<Slot>& slots_;
  bool enabled_;
  std::size_t expected_;
  std::size_t saved_ = 0;
  std::optional<Difference> first_;
};

}  // namespace refrain::detail
