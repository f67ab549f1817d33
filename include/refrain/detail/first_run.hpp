// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace refrain::detail {

/// Watches one first run for something that makes an exact replay impossible.
class RunWatch {
 public:
  /// Call after the run.
  [[nodiscard]] virtual bool must_stay_plain() const = 0;

 protected:
  ~RunWatch() = default;
};

/// The first run of one call of a region, whatever the types of its arguments and its result: so
/// the routes are compiled once, and not for each of them. Refers to the caller's variables.
struct FirstRun {
  using OnTensor = c10::function_ref<void(at::Tensor&)>;
  enum class Result { None, Opaque, Visitable };

  c10::function_ref<void()> call;  ///< Leaves the result with the caller.
  Result result;
  c10::function_ref<void(OnTensor)> for_each_result;  ///< Call after `call`.
  const RunWatch* watch;                              ///< Null: nothing to watch.
  bool is_noexcept;                                   ///< No exception may leave `call`.
};

}  // namespace refrain::detail
