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

/// The seconds that one stage took, each time, in each way to run it.
struct StageTimes {
  struct Way {
    std::vector<double> forward, backward;
  };
  std::vector<Way> ways;  ///< Plainly, as a region, and in each of its options.

  explicit StageTimes(std::size_t options) : ways(2 + options) {}

  [[nodiscard]] const Way& plain() const { return ways[0]; }
  [[nodiscard]] const Way& region() const { return ways[1]; }
  [[nodiscard]] const Way& option(std::size_t i) const { return ways[2 + i]; }
  [[nodiscard]] std::int64_t rounds() const {
    return static_cast<std::int64_t>(plain().forward.size());
  }

  void add(const StageTimes& other) {
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (std::size_t i = 0; i < ways.size(); ++i) {
      append(ways[i].forward, other.ways[i].forward);
      append(ways[i].backward, other.ways[i].backward);
    }
  }
  [[nodiscard]] double total() const {
    double sum = 0;
    for (const Way& way : ways) {
      for (const double time : way.forward) sum += time;
      for (const double time : way.backward) sum += time;
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

  using Settings = std::shared_ptr<const RegionSettings>;

  /// `input` is behind sinks. `layouts`: how the gradients of the result lie. `settings`: of the
  /// region over the stage, and of each of its options. `held`: whether the caller holds the result
  /// during the backward.
  StageMeter(const DeviceMeter& device, const CacheSweep& sweep, const Run& run,
             const HeldValue& input, const GradientLayouts& layouts, LeafGradients& gradients,
             const std::vector<Settings>& settings, Result held)
      : device_(device),
        sweep_(sweep),
        run_(run),
        input_(input),
        layouts_(layouts),
        gradients_(gradients),
        held_(held),
        ways_{run} {
    for (const Settings& how : settings) ways_.push_back(as_region(how));
    for (const Run& way : ways_) run_backward(way(input_));
  }

  /// Fills all bytes of `cost` but those of its input and its output.
  void measure_bytes(StageCost& cost) {
    cost.plain = run_bytes(run_, cost);
    cost.saved_tensors = bytes_by_hooks();
    measure_region_bytes(cost);
    for (std::size_t i = 0; i < options(); ++i)
      cost.options.push_back(run_bytes(ways_[kOptions + i], cost));
  }

  [[nodiscard]] std::size_t options() const { return ways_.size() - kOptions; }

  /// Of the stage's output, the bytes that an option keeps itself, whoever else lets go of it.
  [[nodiscard]] std::int64_t output_kept_by(std::size_t option, std::int64_t output) const {
    HeldValue result = ways_[kOptions + option](input_);
    torch::autograd::edge_list graph;
    for (const at::Tensor& tensor : result.tensors()) {
      if (tensor.requires_grad()) graph.push_back(torch::autograd::impl::gradient_edge(tensor));
    }
    const std::int64_t before = device_.live();
    result = HeldValue();
    return output - (before - device_.live());
  }

  /// Runs everything once more.
  void measure_seconds(StageTimes& times) {
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      gradients_.reset();
      time(ways_[i], times.ways[i]);
    }
  }

 private:
  static constexpr std::size_t kRegion = 1;
  static constexpr std::size_t kOptions = 2;

  struct Callee {
    const Run* run;
    HeldValue operator()(HeldValue value) const { return (*run)(std::move(value)); }
    [[nodiscard]] Callee kept() const { return *this; }
    [[nodiscard]] Callee for_replay() const { return *this; }
  };

  [[nodiscard]] Run as_region(const Settings& settings) const {
    return [this, settings](const HeldValue& input) {
      return call_region(settings, Callee{&run_}, nullptr, input);
    };
  }

  /// Of one way to run the stage, all but its `replay_peak`.
  GradRun run_bytes(const Run& run, StageCost& cost) {
    GradRun bytes;
    gradients_.reset();
    const std::int64_t base = device_.live();
    device_.reset();
    HeldValue result = run(input_);
    bytes.forward_peak = device_.peak() - base;
    bytes.saved = device_.live() - base;
    const bool held = held_ == Result::Held;
    const std::int64_t own = held ? base + cost.output : base;
    {
      const HeldValue holder = held ? result : HeldValue();
      device_.reset();
      run_backward(std::move(result));
      bytes.backward_peak_with_gradient = device_.peak() - own;
      cost.gradients = std::max(cost.gradients, device_.live() - own);
    }
    gradients_.reset();
    result = run(input_);
    const HeldValue again = held ? result : HeldValue();
    bytes.backward_peak = peak_with_gradient_held(std::move(result)) - own;
    return bytes;
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
    HeldValue result = ways_[kRegion](input_);
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

  void time(const Run& forward, StageTimes::Way& times) {
    sweep_.run();
    const auto begin = device_.now();
    HeldValue result = forward(input_);
    times.forward.push_back(DeviceMeter::seconds(begin, device_.now()));
    sweep_.run();
    const auto middle = device_.now();
    run_backward(std::move(result));
    times.backward.push_back(DeviceMeter::seconds(middle, device_.now()));
  }

  const DeviceMeter& device_;
  const CacheSweep& sweep_;
  const Run& run_;
  const HeldValue& input_;
  const GradientLayouts& layouts_;
  LeafGradients& gradients_;
  Result held_;
  std::vector<Run> ways_;  ///< Plainly, as a region, in each option.
};

}  // namespace refrain::detail
