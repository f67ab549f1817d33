// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/cache_sweep.hpp>
#include <refrain/detail/chain_scan.hpp>
#include <refrain/detail/device_meter.hpp>
#include <refrain/detail/graph_ends.hpp>
#include <refrain/detail/leaf_gradients.hpp>
#include <refrain/detail/profiled_chain.hpp>
#include <refrain/detail/region.hpp>
#include <refrain/detail/saved_storages.hpp>
#include <refrain/stage_cost.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace refrain::detail {

/// The seconds that one stage took, each time.
struct StageTimes {
  std::vector<double> forward, backward, region_forward, region_backward;

  void add(const StageTimes& other) {
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(forward, other.forward);
    append(backward, other.backward);
    append(region_forward, other.region_forward);
    append(region_backward, other.region_backward);
  }
  [[nodiscard]] double total() const {
    double sum = 0;
    for (const auto* const times : {&forward, &backward, &region_forward, &region_backward}) {
      for (const double time : *times) sum += time;
    }
    return sum;
  }
  /// To a quarter of a nanosecond: sums of such seconds are exact, in whatever order, so that plans
  /// that take the same time are seen to.
  [[nodiscard]] static double exact(double seconds) {
    constexpr int kBits = 32;
    return std::ldexp(std::round(std::ldexp(seconds, kBits)), -kBits);
  }
  [[nodiscard]] static double median(std::vector<double> times) {
    if (times.empty()) return 0;
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return exact(*middle);
  }
};

/// Measures one stage of a chain on a real input.
class StageMeter {
 public:
  using Run = std::function<HeldValue(HeldValue)>;
  enum class Result { Dropped, Held };

  /// `input` is behind sinks. `layouts`: how the gradients of the result lie. `held`: whether the
  /// caller holds the result during the backward.
  StageMeter(const DeviceMeter& device, const CacheSweep& sweep, const Run& run,
             const HeldValue& input, const GradientLayouts& layouts, LeafGradients& gradients,
             std::shared_ptr<const RegionSettings> settings, Result held)
      : device_(device),
        sweep_(sweep),
        run_(run),
        input_(input),
        layouts_(layouts),
        gradients_(gradients),
        settings_(std::move(settings)),
        held_(held) {
    run_backward(run_(input_));
    run_backward(run_region());
  }

  /// Fills all bytes of `cost` but those of its input and its output.
  void measure_bytes(StageCost& cost) {
    gradients_.reset();
    const std::int64_t base = device_.live();
    device_.reset();
    HeldValue result = run_(input_);
    cost.plain.forward_peak = device_.peak() - base;
    cost.plain.saved = device_.live() - base;
    const bool held = held_ == Result::Held;
    const std::int64_t own = held ? base + cost.output : base;
    {
      const HeldValue holder = held ? result : HeldValue();
      device_.reset();
      run_backward(std::move(result));
      cost.plain.backward_peak_with_gradient = device_.peak() - own;
      cost.gradients = device_.live() - own;
      gradients_.reset();
      result = run_(input_);
      const HeldValue again = held ? result : HeldValue();
      cost.plain.backward_peak = peak_with_gradient_held(std::move(result)) - own;
    }
    cost.saved_tensors = bytes_by_hooks();
    measure_region_bytes(cost);
  }

  /// Runs everything once more.
  void measure_seconds(StageTimes& times) {
    gradients_.reset();
    time(run_, times.forward, times.backward);
    gradients_.reset();
    time([this](const HeldValue&) { return run_region(); }, times.region_forward,
         times.region_backward);
  }

 private:
  struct Callee {
    const Run* run;
    HeldValue operator()(HeldValue value) const { return (*run)(std::move(value)); }
    [[nodiscard]] Callee kept() const { return *this; }
    [[nodiscard]] Callee for_replay() const { return *this; }
  };

  [[nodiscard]] HeldValue run_region() const {
    return call_region(settings_, Callee{&run_}, nullptr, input_);
  }

  void run_backward(HeldValue result) const {
    std::vector<at::Tensor> tensors = result.tensors();
    result = HeldValue();
    GradientSource::run_and_drop(std::move(tensors), layouts_);
  }

  /// Of what autograd saves and of the result: the memory that goes when both do, so none of
  /// parameters, buffers and other tensors from outside.
  [[nodiscard]] std::int64_t bytes_by_hooks() const {
    SavedStorages saves;
    {
      const HookScope noted(&saves);
      for (const at::Tensor& tensor : run_(input_).tensors()) saves.storages().add(tensor);
    }
    return saves.storages().bytes_gone();
  }

  void measure_region_bytes(StageCost& cost) {
    gradients_.reset();
    const std::int64_t base = device_.live();
    device_.reset();
    HeldValue result = run_region();
    cost.nograd_peak = device_.peak() - base;
    cost.region_keeps = std::max<std::int64_t>(0, device_.live() - base - cost.output);
    device_.reset();
    run_backward(std::move(result));
    cost.plain.replay_peak = device_.peak() - base;
    gradients_.reset();
  }

  /// The gradients themselves not counted.
  [[nodiscard]] std::int64_t peak_with_gradient_held(HeldValue result) const {
    torch::autograd::edge_list roots;
    torch::autograd::variable_list held;
    for (const at::Tensor& tensor : result.tensors()) {
      if (!tensor.requires_grad()) continue;
      const at::NoGradGuard no_grad;
      roots.push_back(torch::autograd::impl::gradient_edge(tensor));
      const std::size_t place = held.size();
      held.push_back(
          GradientSource::gradient(tensor.sizes(), tensor.options(),
                                   place < layouts_.size() ? layouts_[place].get() : nullptr));
    }
    const std::int64_t bytes = StorageSet(held).bytes();
    result = HeldValue();
    device_.reset();
    if (!roots.empty()) {
      torch::autograd::Engine::get_default_engine().execute(roots, held, false, false, true);
    }
    return device_.peak() - bytes;
  }

  template <class Forward>
  void time(const Forward& forward, std::vector<double>& forwards, std::vector<double>& backwards) {
    sweep_.run();
    const auto begin = device_.now();
    HeldValue result = forward(input_);
    forwards.push_back(DeviceMeter::seconds(begin, device_.now()));
    sweep_.run();
    const auto middle = device_.now();
    run_backward(std::move(result));
    backwards.push_back(DeviceMeter::seconds(middle, device_.now()));
  }

  const DeviceMeter& device_;
  const CacheSweep& sweep_;
  const Run& run_;
  const HeldValue& input_;
  const GradientLayouts& layouts_;
  LeafGradients& gradients_;
  std::shared_ptr<const RegionSettings> settings_;
  Result held_;
};

}  // namespace refrain::detail
