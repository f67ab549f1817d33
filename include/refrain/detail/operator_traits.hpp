// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/pointer_map.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace refrain::detail {

/// What an operator's schema says of its arguments, read once a thread.
struct OperatorTraits {
  std::size_t arguments = 0;
  std::size_t returns = 0;
  bool writes = false;  ///< Some argument is marked as written.
  /// What it writes may become part of the graph: it gives it back, or gives nothing. Observers and
  /// norms write their statistics beside a result.
  bool writes_in_graph = false;
  bool draws = false;           ///< From a random generator.
  std::ptrdiff_t dropout = -1;  ///< The probability without which it does not draw, if any.
  /// First of two running statistics that are written without a mark, if any.
  std::ptrdiff_t statistics = -1;
  std::ptrdiff_t training = -1;  ///< The flag that says whether they are written.

  explicit OperatorTraits(const OperatorHandle& op)
      : arguments(op.schema().arguments().size()),
        returns(op.schema().returns().size()),
        draws(op.hasTag(at::Tag::nondeterministic_seeded)) {
    const c10::FunctionSchema& schema = op.schema();
    const auto& results = schema.returns();
    writes_in_graph = results.empty() || std::any_of(results.begin(), results.end(), is_written);
    if (changes_no_contents(schema.name())) return;
    const bool is_dropout = schema.name().find("dropout") != std::string::npos;
    for (std::size_t i = 0; i < arguments; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (is_written(argument)) writes = true;
      if (argument.name() == "running_mean" && !is_written(argument))
        statistics = static_cast<std::ptrdiff_t>(i);
      if (argument.name() == "training" || argument.name() == "use_input_stats" ||
          argument.name() == "train") {
        training = static_cast<std::ptrdiff_t>(i);
      }
      if (argument.name() == "dropout_p" || (is_dropout && argument.name() == "p"))
        dropout = static_cast<std::ptrdiff_t>(i);
    }
    if (training < 0 && !always_in_training(schema.name())) statistics = -1;
  }

  /// Whether a call with these arguments writes the statistics.
  template <class Arguments>
  [[nodiscard]] bool writes_statistics(const Arguments& values) const {
    return statistics >= 0 && (training < 0 || values[training].toBool());
  }

  /// Whether a call with these arguments may draw: not in eval mode, nor without dropout.
  template <class Arguments>
  [[nodiscard]] bool may_draw(const Arguments& values) const {
    if (!draws) return false;
    if (training >= 0 && values[training].isBool() && !values[training].toBool()) return false;
    return dropout < 0 || !values[dropout].isDouble() || values[dropout].toDouble() > 0;
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
    return traits.emplace_back(op);
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
