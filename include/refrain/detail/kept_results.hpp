// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/held_value.hpp>
#include <refrain/detail/moved_tensor.hpp>
#include <refrain/detail/outside_tensors.hpp>
#include <refrain/detail/random_state.hpp>
#include <refrain/detail/tensor_facts.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace refrain::detail {

/// What one call of a chosen operator gave.
struct KeptCall {
  struct Version {
    VersionMark mark;
    WeakTensor tensor;  ///< Only to be compared.
    explicit Version(const at::Tensor& of) : mark(of), tensor(of.getIntrusivePtr()) {}
  };

  const c10::FunctionSchema* schema = nullptr;
  std::uint64_t shapes = 0;  ///< Of its arguments.
  bool kept = false;
  std::int64_t written_at = 0;  ///< When the run wrote to its memory, in operators; 0: it did not.
  bool folded = false;  ///< A change in place of the result of the call before, which has it.
  c10::SmallVector<c10::IValue, 1> returns;       ///< Tensors without their graphs.
  std::vector<std::optional<MovedTensor>> moved;  ///< Of `returns`, those that wait in a tier.
  c10::SmallVector<Version, 2> versions;          ///< Of all through which they may be changed.
  std::vector<at::Tensor> written;                ///< Copies of what it wrote into its arguments.
  std::vector<RandomState> after;  ///< Where it left the generators that it drew from.

  /// Not where somebody has changed a result in place since.
  [[nodiscard]] bool usable() const {
    return kept && written_at == 0 &&
           std::none_of(versions.begin(), versions.end(),
                        [](const Version& version) { return version.mark.moved(); });
  }
};

/// What one call of `refrain::keep(name, ...)` gave.
struct KeptValue {
  struct Tensor {
    VersionMark version;
    bool tracked = false;              ///< It needs a gradient.
    at::Tensor memory;                 ///< What it lay in when it was kept, whoever owns that.
    std::optional<MovedTensor> moved;  ///< Where it waits in a tier, instead of in the value.
  };
  struct Write {
    at::Tensor live;
    at::Tensor after;  ///< What the code left in it.
  };
  std::string name;
  bool threw = false;              ///< The code did: it runs again.
  mutable bool written = false;    ///< The run has written to its memory since.
  HeldValue value;                 ///< Tensors without their graphs.
  std::vector<Tensor> tensors;     ///< In the order of a visit.
  std::vector<RandomState> after;  ///< Where the code left the generators that it drew from.
  std::vector<Write> writes;       ///< What it changed outside the region.
};

/// What one call of a region keeps for its replays, in the order of the calls.
struct KeptResults {
  std::vector<KeptCall> calls;
  std::vector<std::shared_ptr<KeptValue>> values;
};

/// Lets what one call keeps wait in `tier`. Call when nothing is kept any more; what a region
/// around this one keeps as well stays.
inline void move_kept(KeptResults& kept, const TierUse& tier, const std::string& region) {
  const auto can_move = [&tier](const c10::IValue& value) {
    return value.isTensor() && MovedTensor::can_move(value.toTensor(), tier);
  };
  for (KeptCall& call : kept.calls) {
    call.moved.resize(call.returns.size());
    for (std::size_t i = 0; i < call.returns.size(); ++i) {
      if (!can_move(call.returns[i])) continue;
      call.moved[i].emplace(call.returns[i].toTensor(), tier, region);
      call.returns[i] = {};
    }
  }
  for (const auto& value : kept.values) {
    if (value.use_count() > 1) continue;
    std::size_t place = 0;
    visit_tensors(value->value, [&](at::Tensor& tensor) {
      KeptValue::Tensor& known = value->tensors[place++];
      if (!MovedTensor::can_move(tensor, tier)) return;
      known.moved.emplace(tensor, tier, region);
      known.memory.reset();
      tensor.reset();
    });
  }
}

}  // namespace refrain::detail
