// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>
#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/saved_list.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/saved_report.hpp>
#include <refrain/visit_tensors.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace refrain {
namespace detail {

template <class Thing>
[[nodiscard]] SavedList::Names parameter_names(const Thing& thing) {
  SavedList::Names names;
  if constexpr (Holder<Thing>) {
    const torch::nn::Module& module = *thing;
    for (const auto& item : module.named_parameters()) {
      if (item.value().defined()) names.emplace(storage_of(item.value()), item.key());
    }
  }
  return names;
}

}  // namespace detail

/// Calls a module or function once and tells what autograd saves of it, tensor by tensor: which
/// operator saves it, its shape and bytes, whether it is an activation, a parameter or an input,
/// and which tensors share memory.
///
///     fmt::print("{}\n", refrain::explain_saved(block, x));
///
/// The result is dropped. Random numbers are drawn and buffers move as in any call. Regions inside
/// show what they keep. Operators are named as the code calls them: `linear`, not what that is made
/// of. Memory: what the call keeps. Time: that of the call, and about a microsecond a tensor.
template <class Function, class... Inputs>
[[nodiscard]] SavedReport explain_saved(Function&& function, Inputs&&... inputs) {
  std::vector<at::Tensor> tensors;
  const auto note = [&tensors](auto& input) {
    detail::for_each_tensor_in(input, [&tensors](at::Tensor& tensor) {
      if (tensor.defined()) tensors.push_back(tensor);
    });
  };
  (
      [&] {
        auto copy = inputs;
        note(copy);
      }(),
      ...);
  detail::SavedList list(tensors, detail::parameter_names(function));
  {
    const at::AutoGradMode as_in_training(true);
    const detail::Footprint::Scope watched(&list.footprint());
    const detail::HookScope hooked(&list);
    (void)detail::call_thing(function, std::forward<Inputs>(inputs)...);
  }
  return list.take();
}

}  // namespace refrain
