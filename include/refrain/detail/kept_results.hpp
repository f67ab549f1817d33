// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/backend_tap.hpp>
#include <refrain/detail/held_value.hpp>
#include <refrain/detail/kept_operators.hpp>
#include <refrain/detail/other_path.hpp>
#include <refrain/detail/random_state.hpp>
#include <refrain/detail/surroundings.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/options.hpp>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::detail {

/// What one call of a chosen operator gave.
struct KeptCall {
  const c10::FunctionSchema* schema = nullptr;
  std::uint64_t shapes = 0;  ///< Of its arguments.
  bool kept = false;
  std::vector<c10::IValue> returns;  ///< Tensors without their graphs.
  std::vector<VersionMark> versions;
  std::vector<at::Tensor> written;  ///< Copies of what it wrote into its arguments.
  std::vector<RandomState> after;   ///< Where it left the generators that it drew from.

  /// Not where somebody has changed a result in place since.
  [[nodiscard]] bool usable() const {
    return kept && std::none_of(versions.begin(), versions.end(),
                                [](const VersionMark& version) { return version.moved(); });
  }
};

/// What one call of `refrain::keep(name, ...)` gave.
struct KeptValue {
  struct Tensor {
    VersionMark version;
    bool tracked = false;  ///< It needs a gradient.
  };
  struct Write {
    at::Tensor live;
    at::Tensor after;  ///< What the code left in it.
  };
  std::string name;
  HeldValue value;                 ///< Tensors without their graphs.
  std::vector<Tensor> tensors;     ///< In the order of a visit.
  std::vector<RandomState> after;  ///< Where the code left the generators that it drew from.
  std::vector<Write> writes;       ///< What it changed outside the region.
};

/// What one call of a region keeps for its replays, in the order of the calls.
struct KeptResults {
  std::vector<KeptCall> calls;
  std::vector<std::shared_ptr<const KeptValue>> values;
};

}  // namespace refrain::detail
