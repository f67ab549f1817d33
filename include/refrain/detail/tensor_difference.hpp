// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/tensor_facts.hpp>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <string>

namespace refrain::detail {

/// Says how two tensors differ; empty if they hold the same values, or the same within a tolerance.
/// NaN equals NaN.
[[nodiscard]] inline std::string difference_between(const at::Tensor& expected,
                                                    const at::Tensor& got, double tolerance) {
  if (expected.defined() != got.defined()) {
    return expected.defined()
               ? fmt::format("{} in the plain step, undefined in the checkpointed one",
                             to_string(TensorFacts(expected)))
               : fmt::format("undefined in the plain step, {} in the checkpointed one",
                             to_string(TensorFacts(got)));
  }
  if (!expected.defined()) return {};
  const TensorFacts facts(expected);
  if (!facts.describe(got)) {
    return fmt::format("{} in the plain step, {} in the checkpointed one", to_string(facts),
                       to_string(TensorFacts(got)));
  }
  if (expected.requires_grad() != got.requires_grad()) {
    return fmt::format("{}: requires grad on one side only", to_string(facts));
  }
  if (expected.layout() != got.layout()) {
    return fmt::format("{}: another layout in the checkpointed step", to_string(facts));
  }
  if (expected.layout() != at::kStrided) {
    return difference_between(expected.to_dense(), got.to_dense(), tolerance);
  }
  const bool floating = expected.is_floating_point() || expected.is_complex();
  const at::Tensor same =
      tolerance > 0 && floating
          ? at::isclose(got, expected, tolerance, tolerance, /*equal_nan=*/true)
      : floating ? at::logical_or(got.eq(expected), at::logical_and(got.isnan(), expected.isnan()))
                 : got.eq(expected);
  const auto differing = same.numel() - same.sum().item<std::int64_t>();
  if (differing == 0) return {};
  const auto most =
      floating ? (got - expected).abs().nan_to_num().max().item<double>()
               : (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  return fmt::format("{}: {} of {} elements differ, by at most {:.3g}", to_string(facts), differing,
                     same.numel(), most);
}

}  // namespace refrain::detail
