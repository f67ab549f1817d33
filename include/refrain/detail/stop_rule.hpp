// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string_view>
#include <typeinfo>

namespace refrain::detail {

/// Where a replay may be left once the last tensor is saved: at once, or only when the operator
/// that saves it is over.
///
/// An operator saves its inputs before its kernel runs, and may count among them a tensor that it
/// has yet to fill; and a custom `torch::autograd::Function` that saves its own outputs holds them
/// in a loop until all are saved. What was made before the operator is complete: it requires grad,
/// or it came from outside the region and was not written.
///
/// The tensors that one operator saves carry the same sequence number, so the rule is read off the
/// last such group.
class StopRule {
 public:
  void saved(const at::Tensor& tensor, const Footprint& footprint) {
    const std::uint64_t sequence = at::sequence_number::peek();
    if (sequence != group_) {
      group_ = sequence;
      at_once_ = true;
      work_then_ = footprint.work();
      skipped_.bytes = 0;
    }
    skipped_.bytes += bytes_of(tensor);
    if (at_once_) {
      at_once_ =
          tensor.requires_grad() ? !from_custom_function(tensor) : footprint.is_settled(tensor);
    }
  }

  [[nodiscard]] bool at_once() const { return at_once_; }

  void run_ended(const Footprint& footprint) {
    skipped_.operators = footprint.work().operators - work_then_.operators;
    skipped_.bytes += footprint.work().bytes - work_then_.bytes;
  }

  /// Whether what a stop skips takes longer than the stop itself, an exception through all of the
  /// region's calls (some 10 µs, as an operator on this many bytes, or this many small operators).
  [[nodiscard]] bool pays() const {
    return skipped_.bytes >= kBytes || skipped_.operators >= kOperators;
  }

 private:
  // LibTorch's class template for custom functions, as the Itanium ABI spells it; asking the node
  // for its name would demangle, which costs more than saving the tensor.
  static bool from_custom_function(const at::Tensor& tensor) {
    const auto& node = tensor.grad_fn();
    if (node == nullptr) return false;
    const auto& known = *node;
    return std::string_view(typeid(known).name()).starts_with("N5torch8autograd7CppNodeI");
  }

  static constexpr std::int64_t kBytes = std::int64_t{16} * 1024;
  static constexpr std::int64_t kOperators = 5;

  std::uint64_t group_ = ~std::uint64_t{0};
  bool at_once_ = false;
  Footprint::Work work_then_;  ///< When the last group began.
  Footprint::Work skipped_;
};

}  // namespace refrain::detail
