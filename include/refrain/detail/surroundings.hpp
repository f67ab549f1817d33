// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/random_state.hpp>
#include <refrain/detail/turn.hpp>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#if __has_include(<ATen/core/NamedTensor.h>)
#include <ATen/core/NamedTensor.h>
#define REFRAIN_DETAIL_NAMED_TENSORS 1
#endif

namespace refrain::detail {

/// Whether tensors' names count on this thread, in a LibTorch that knows names.
struct TensorNames {
#ifdef REFRAIN_DETAIL_NAMED_TENSORS
  static bool are_on() { return at::NamesMode::is_enabled(); }
  static void switch_on(bool on) { at::NamesMode::set_enabled(on); }
#else
  static bool are_on() { return false; }
  static void switch_on(bool /*on*/) {}
#endif
};

/// The autocast switches of one thread, for the CPU and for the accelerator if there is one.
class AutocastState {
 public:
  static AutocastState capture() {
    AutocastState state;
    state.devices_[0] = read(at::kCPU);
    if (const auto accelerator = at::getAccelerator()) state.devices_[1] = read(*accelerator);
    state.cache_ = at::autocast::is_autocast_cache_enabled();
    return state;
  }

  void apply() const {
    for (const auto& device : devices_) {
      if (!device) continue;
      at::autocast::set_autocast_enabled(device->type, device->enabled);
      at::autocast::set_autocast_dtype(device->type, device->dtype);
    }
    at::autocast::set_autocast_cache_enabled(cache_);
  }

  [[nodiscard]] bool any_enabled() const {
    return std::any_of(devices_.begin(), devices_.end(),
                       [](const auto& device) { return device && device->enabled; });
  }

  [[nodiscard]] AutocastState without_cache() const {
    AutocastState state = *this;
    state.cache_ = false;
    return state;
  }

 private:
  struct Device {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };

  static Device read(at::DeviceType type) {
    return {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
  }

  std::array<std::optional<Device>, 2> devices_;
  bool cache_ = true;
};

/// Makes autocast cast anew while it lives.
class AutocastCacheOff {
 public:
  AutocastCacheOff() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastCacheOff() { at::autocast::set_autocast_cache_enabled(before_); }
  AutocastCacheOff(const AutocastCacheOff&) = delete;
  AutocastCacheOff& operator=(const AutocastCacheOff&) = delete;

 private:
  bool before_;
};

/// The accelerator devices in use: code may move its tensors to any of them, and draw there.
[[nodiscard]] inline std::vector<at::Device> accelerators_in_play() {
  std::vector<at::Device> devices;
  const auto accelerator = at::getAccelerator();
  if (!accelerator) return devices;
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(*accelerator);
  // 0 for a CUDA LibTorch where there is no GPU.
  const c10::DeviceIndex count = hooks.deviceCount();
  for (c10::DeviceIndex i = 0; i < count; ++i) {
    if (hooks.hasPrimaryContext(i)) devices.emplace_back(*accelerator, i);
  }
  return devices;
}

/// Where the random generators stand: the CPU's, those of the accelerators in use, and `extra`.
template <class States = std::vector<RandomState>>
[[nodiscard]] States random_states(const std::vector<at::Generator>& extra) {
  States states;
  states.emplace_back(at::globalContext().defaultGenerator(at::kCPU));
  for (const at::Device device : accelerators_in_play()) {
    states.emplace_back(at::globalContext().defaultGenerator(device));
  }
  for (const at::Generator& generator : extra) states.emplace_back(generator);
  return states;
}

/// Where the generators stand before a first run. Lives on its stack: most runs draw nothing, and
/// an allocation of this size makes the C library tidy its heap.
class EntryRandomState {
 public:
  EntryRandomState(bool enabled, const std::vector<at::Generator>& extra) {
    if (enabled) states_ = random_states<States>(extra);
  }

  [[nodiscard]] std::vector<RandomState> all() const { return {states_.begin(), states_.end()}; }

  /// The generators that somebody has drawn from since: those that moved, and those of devices that
  /// operators drew on.
  [[nodiscard]] std::vector<RandomState> drawn_from(DrewOn seen) const {
    std::vector<RandomState> drawn;
    for (const RandomState& state : states_) {
      if (seen.contains(state.device_type()) || state.moved()) drawn.push_back(state);
    }
    return drawn;
  }

 private:
  using States = c10::SmallVector<RandomState, 1>;
  States states_;
};

/// What a run depends on besides its arguments: random generators, autocast, grad mode, whether
/// tensors' names count.
///
/// Captured before the first run and put back around the replay; what the caller of backward had
/// comes back after it, also on exceptions.
class Surroundings {
 public:
  Surroundings() : autocast_(AutocastState::capture()), tensor_names_(TensorNames::are_on()) {}

  /// The generators to put back for a replay.
  void set_random(std::vector<RandomState> states) { random_ = std::move(states); }
  /// How many those are.
  [[nodiscard]] std::size_t random_states() const { return random_.size(); }

  /// As captured while it lives, then as it was.
  class Scope {
   public:
    explicit Scope(Surroundings& then)
        : inference_mode_(false),
          grad_mode_(true),
          autocast_before_(AutocastState::capture()),
          tensor_names_before_(TensorNames::are_on()),
          turn_(Turn::At::Generators, generators_of(then.random_)) {
      before_.reserve(then.random_.size());
      for (const RandomState& state : then.random_) before_.push_back(state.again());
      for (RandomState& state : then.random_) state.restore();
      TensorNames::switch_on(then.tensor_names_);  // the engine switches them off
      switches_autocast_ = then.autocast_.any_enabled() || autocast_before_.any_enabled();
      if (!switches_autocast_) return;
      // The cache may hold casts of parameters as they were at another time.
      then.autocast_.without_cache().apply();
      at::autocast::increment_nesting();
    }

    ~Scope() {
      if (switches_autocast_) {
        if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
        autocast_before_.apply();
      }
      TensorNames::switch_on(tensor_names_before_);
      for (RandomState& state : before_) state.restore();
    }

    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    static std::vector<const void*> generators_of(const std::vector<RandomState>& states) {
      std::vector<const void*> generators;
      generators.reserve(states.size());
      for (const RandomState& state : states) generators.push_back(state.generator());
      return generators;
    }

    c10::InferenceMode inference_mode_;
    at::AutoGradMode grad_mode_;
    AutocastState autocast_before_;
    bool tensor_names_before_;
    bool switches_autocast_ = false;
    Turn turn_;
    std::vector<RandomState> before_;
  };

 private:
  AutocastState autocast_;
  bool tensor_names_;
  std::vector<RandomState> random_;
};

}  // namespace refrain::detail
