// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/moved_tensor.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

namespace refrain::detail {

/// Keeps one tensor that autograd saves in a tier.
class MoveHook final : public torch::autograd::SavedVariableHooks {
 public:
  /// `checked`: a change in place since is an error, as autograd's own check has it, which hooks
  /// switch off.
  MoveHook(TierUse use, std::string region, bool checked)
      : use_(std::move(use)), region_(std::move(region)), checked_(checked) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    if (checked_) {
      version_ = VersionMark(tensor);
      facts_.emplace(tensor);
    }
    saved_.emplace(tensor, use_, region_);
  }

  at::Tensor call_unpack_hook() override {
    if (version_.moved()) {
      throw DivergenceError(
          fmt::format("a tensor that `{}` saved for backward was changed in place since the "
                      "forward.",
                      region_),
          fmt::format("{}, version {} then, {} now", to_string(*facts_), version_.then(),
                      version_.now()),
          "likely cause: an optimizer step, or an in-place operation, between forward and "
          "backward.",
          "call backward first, or write to a clone.");
    }
    at::Tensor saved = saved_->get();
    version_.share_with(saved);  // a change of what came back counts as one of what went
    return saved;
  }

 private:
  TierUse use_;
  std::string region_;
  bool checked_;
  VersionMark version_;
  std::optional<TensorFacts> facts_;
  std::optional<MovedTensor> saved_;
};

}  // namespace refrain::detail
