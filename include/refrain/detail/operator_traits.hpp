// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/pointer_map.hpp>

#include <ATen/core/function_schema.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>

namespace refrain::detail {

/// What an operator's schema says of its arguments, read once a thread.
struct OperatorTraits {
  std::size_t arguments = 0;
  std::size_t returns = 0;
  bool writes = false;  ///< Some argument is marked as written.
  /// First of two running statistics that are written without a mark, if any.
  std::ptrdiff_t statistics = -1;
  std::ptrdiff_t training = -1;  ///< The flag that says whether they are written.

  explicit OperatorTraits(const c10::FunctionSchema& schema)
      : arguments(schema.arguments().size()), returns(schema.returns().size()) {
    if (changes_no_contents(schema.name())) return;
    for (std::size_t i = 0; i < arguments; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (is_written(argument)) writes = true;
      if (argument.name() == "running_mean" && !is_written(argument))
        statistics = static_cast<std::ptrdiff_t>(i);
      if (argument.name() == "training" || argument.name() == "use_input_stats" ||
          argument.name() == "train") {
        training = static_cast<std::ptrdiff_t>(i);
      }
    }
    if (training < 0 && !always_in_training(schema.name())) statistics = -1;
  }

  /// Whether a call with these arguments writes the statistics.
  template <class Arguments>
  [[nodiscard]] bool writes_statistics(const Arguments& values) const {
    return statistics >= 0 && (training < 0 || values[training].toBool());
  }

  [[nodiscard]] static bool is_written(const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  }

  [[nodiscard]] static const OperatorTraits& of(const OperatorHandle& op) {
    thread_local PointerMap known;
    thread_local std::deque<OperatorTraits> traits;
    thread_local std::uint64_t as_of = 0;
    if (const std::uint64_t now = OpTap::operators_removed(); now != as_of) {
      known = {};  // another operator may have the address of one that is gone
      as_of = now;
    }
    const c10::FunctionSchema& schema = op.schema();
    const std::int64_t index = known.find(&schema);
    if (index != PointerMap::kAbsent) return traits[static_cast<std::size_t>(index)];
    known.set(&schema, static_cast<std::int64_t>(traits.size()));
    return traits.emplace_back(schema);
  }

 private:
  // What SyncBatchNorm is made of.
  static bool always_in_training(std::string_view name) {
    return name == "aten::batch_norm_update_stats" || name == "aten::batch_norm_gather_stats" ||
           name == "aten::batch_norm_gather_stats_with_counts";
  }

  // Marked as writing, but only what autograd knows of the tensor changes.
  static bool changes_no_contents(std::string_view name) {
    return name == "aten::requires_grad_" || name == "aten::retain_grad" || name == "aten::detach_";
  }
};

}  // namespace refrain::detail
