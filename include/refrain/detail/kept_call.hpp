// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/argument_tensors.hpp>
#include <refrain/detail/kept_results.hpp>
#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/operator_traits.hpp>
#include <refrain/detail/random_state.hpp>
#include <refrain/detail/tensor_facts.hpp>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

/// How the result of one call of an operator is kept, and given back.
namespace refrain::detail {

/// A number for the shapes of all tensors among the arguments.
[[nodiscard]] inline std::uint64_t shapes_of(const c10::IValue* arguments, std::size_t count) {
  constexpr std::uint64_t kPrime = 0x100000001B3U;  // FNV-1a's
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (std::size_t i = 0; i < count; ++i) {
    for_each_tensor(arguments[i], [&hash](const at::Tensor& tensor) {
      hash = (hash ^ static_cast<std::uint64_t>(tensor.dim())) * kPrime;
      if (tensor.layout() != at::kStrided || tensor.is_nested()) return;
      for (const std::int64_t size : tensor.sizes())
        hash = (hash ^ static_cast<std::uint64_t>(size)) * kPrime;
    });
  }
  return hash;
}

/// Whether a result lies in that memory.
[[nodiscard]] inline bool lies_in(const KeptCall& call, const void* storage) {
  return std::any_of(call.returns.begin(), call.returns.end(), [storage](const auto& value) {
    bool is = false;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      is = is || (tensor.has_storage() && storage_of(tensor) == storage);
    });
    return is;
  });
}

/// Whether versions count changes in place of all results: not those of inference tensors.
[[nodiscard]] inline bool counts_changes(const c10::IValue* returns, std::size_t count) {
  bool all = true;
  for (std::size_t i = 0; i < count; ++i) {
    for_each_tensor(returns[i],
                    [&all](const at::Tensor& tensor) { all = all && !tensor.is_inference(); });
  }
  return all;
}

/// The same tensors, below autograd.
[[nodiscard]] inline c10::IValue without_graph(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() ? value.toTensor().variable_data() : value.toTensor();
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector())
    list.push_back(tensor.defined() ? tensor.variable_data() : tensor);
  return list;
}

/// The tensors that the operator changes.
[[nodiscard]] inline std::vector<at::Tensor> written_of(const OperatorHandle& op,
                                                        const c10::IValue* arguments,
                                                        const OperatorTraits& traits) {
  std::vector<at::Tensor> written;
  if (!traits.writes) return written;
  for (std::size_t i = 0; i < traits.arguments; ++i) {
    if (!OperatorTraits::is_written(op.schema().arguments()[i])) continue;
    for_each_tensor(arguments[i],
                    [&written](const at::Tensor& tensor) { written.push_back(tensor); });
  }
  return written;
}

/// The generator that an operator draws from: the one it is given, or else that of its tensors'
/// device.
[[nodiscard]] inline at::Generator generator_of(const c10::IValue* arguments, std::size_t count) {
  c10::Device device(c10::kCPU);
  for (std::size_t i = count; i-- > 0;) {
    if (arguments[i].isGenerator()) return arguments[i].toGenerator();
    for_each_tensor(arguments[i],
                    [&device](const at::Tensor& tensor) { device = tensor.device(); });
  }
  if (device.is_meta()) return {};
  return at::globalContext().defaultGenerator(device);
}

/// Keeps what the call gave and wrote.
inline void keep_result(KeptCall& kept, const OperatorHandle& op, const c10::IValue* returns,
                        const std::vector<at::Tensor>& written) {
  for (std::size_t i = 0; i < op.schema().returns().size(); ++i) {
    const bool is_argument = op.schema().returns()[i].alias_info() != nullptr;
    kept.returns.push_back(is_argument ? c10::IValue() : without_graph(returns[i]));
    if (is_argument) continue;
    for_each_tensor(returns[i],
                    [&kept](const at::Tensor& tensor) { kept.versions.emplace_back(tensor); });
  }
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  for (const at::Tensor& tensor : written) kept.written.push_back(tensor.clone());
  kept.kept = true;
}

/// Gives the code what the call gave, and writes what it wrote.
///
/// Where the pass frees its graph nobody asks for this result again; and if somebody does, it is
/// computed again.
inline void reuse_result(KeptCall& kept, const OperatorHandle& op, OperatorStack& stack) {
  const OperatorTraits& traits = OperatorTraits::of(op);
  const c10::IValue* const arguments = stack.data() + (stack.size() - traits.arguments);
  const std::vector<at::Tensor> written = written_of(op, arguments, traits);
  for (std::size_t i = 0; i < written.size(); ++i) {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    if (written[i].sizes() != kept.written[i].sizes())
      written[i].resize_(kept.written[i].sizes());  // an `out`
    written[i].copy_(kept.written[i]);
  }
  torch::jit::drop(stack, traits.arguments);
  std::size_t next_written = 0;
  for (std::size_t i = 0; i < kept.returns.size(); ++i) {
    const c10::IValue& value = kept.returns[i];
    if (i < kept.moved.size() && kept.moved[i]) {
      stack.push_back(kept.moved[i]->get());
    } else if (value.isNone() && next_written < written.size()) {
      stack.push_back(written[next_written++]);
    } else {
      stack.push_back(without_graph(value));
    }
  }
  for (RandomState& state : kept.after) state.restore();
  if (torch::autograd::get_current_graph_task_id() != -1 &&
      !torch::autograd::get_current_graph_task_keep_graph()) {
    kept.kept = false;
    kept.returns.clear();
    kept.moved.clear();
    kept.written.clear();
  }
}

}  // namespace refrain::detail
