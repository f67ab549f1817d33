// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/chain_scan.hpp>
#include <refrain/detail/graph_ends.hpp>
#include <refrain/detail/held_value.hpp>
#include <refrain/detail/leaf_gradients.hpp>
#include <refrain/detail/stage_meter.hpp>
#include <refrain/detail/step_undone.hpp>
#include <refrain/detail/surroundings.hpp>
#include <refrain/profile_options.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace refrain::detail {

/// The most that lives on the device during one step, with all that is resident or reserved. Random
/// generators, buffers and gradients come back as they were; the copies that this takes are not
/// counted.
[[nodiscard]] inline Bytes measured_peak(const ProfileOptions& options,
                                         const std::vector<at::Generator>& generators,
                                         c10::Device device,
                                         c10::function_ref<HeldValue()> forward) {
  const DeviceMeter meter(device);
  const std::int64_t resident = meter.live();
  const AutocastCacheOff own_casts;
  StepUndone undone(generators);
  {
    const Footprint::Scope watched(&undone.footprint());
    const at::NoGradGuard no_grad;
    (void)forward();
  }
  const at::AutoGradMode as_in_training(true);
  std::int64_t copies = meter.live() - resident;
  meter.reset();
  HeldValue output = forward();
  const HeldValue held = options.output() == StepOutput::Held ? output : HeldValue();
  std::vector<at::Tensor> roots;
  at::Tensor loss;  // the caller's until the end
  if (options.loss()) {
    loss = options.loss()(std::move(output));
    roots = {loss};
  } else {
    roots = output.tensors();
    output = HeldValue();
  }
  const std::int64_t forward_peak = meter.peak() - copies;
  LeafGradients gradients;
  const std::int64_t before = meter.live();
  for (const at::Tensor& leaf : leaves_below(roots)) gradients.add(leaf, false);
  copies += meter.live() - before;
  meter.reset();
  GradientSource::run_and_drop(std::move(roots));
  return Bytes(std::max(forward_peak, meter.peak() - copies)) + options.reserve();
}

}  // namespace refrain::detail
