// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "checks.hpp"
#include <refrain/memory.hpp>
#include <refrain/replay.hpp>

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace gpu_check {

using torch::Tensor;

inline void synchronize(const Where& where) {
  if (where.on_gpu()) at::accelerator::synchronizeDevice(where.device.index());
}

[[nodiscard]] inline Tensor leaf(const Where& where, at::IntArrayRef shape) {
  return torch::randn(shape, where.device).requires_grad_();
}

/// A scalar in which no gradient cancels by symmetry.
[[nodiscard]] inline Tensor loss(const Tensor& y) {
  const auto weights = torch::arange(y.numel(), y.options().dtype(torch::kFloat)).sin() + 1.5;
  return (y.to(torch::kFloat) * weights.view(y.sizes())).sum();
}

/// The gradients of a module's parameters, and its buffers.
inline void note(std::vector<Tensor>& list, const torch::nn::Module& module) {
  for (const Tensor& parameter : module.parameters()) list.push_back(parameter.grad());
  for (const Tensor& buffer : module.buffers()) list.push_back(buffer.clone());
}

/// Kernels that give the same bits twice while it lives, and fresh memory that is filled with
/// nonsense, so that reading it too early shows.
class Repeatable {
 public:
  Repeatable() { set(true); }
  ~Repeatable() { set(false); }
  Repeatable(const Repeatable&) = delete;
  Repeatable& operator=(const Repeatable&) = delete;

 private:
  static void set(bool on) {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/true);
    at::globalContext().setDeterministicCuDNN(on);
  }
};

using Step = std::function<std::vector<Tensor>()>;

/// The first thing in which two lists differ, or nothing.
[[nodiscard]] inline std::string first_difference(const std::vector<Tensor>& a,
                                                  const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return fmt::format("{} tensors, not {}", b.size(), a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined() && !b[i].defined()) continue;
    if (!a[i].defined() || !b[i].defined()) return fmt::format("tensor {} is there only once", i);
    if (torch::equal(a[i], b[i])) continue;
    const double most =
        (a[i].to(torch::kDouble) - b[i].to(torch::kDouble)).abs().max().item<double>();
    return fmt::format("tensor {} of {} differs by up to {:g}", i, a.size(), most);
  }
  return {};
}

/// Runs `step` plain and with its regions from one random state. Its tensors and the random streams
/// afterwards must be the same bits.
inline void require_same(const Where& where, const Step& step, std::uint64_t seed = 20) {
  const Repeatable repeatable;
  const auto run = [&] {
    torch::manual_seed(seed);
    std::vector<Tensor> got = step();
    got.push_back(torch::rand({4}, where.device));
    got.push_back(torch::rand({4}));
    return got;
  };
  const auto plain = [&] {
    const refrain::PlainScope scope;
    return run();
  };
  const auto expected = plain();
  const std::string difference = first_difference(expected, run());
  if (difference.empty()) return;
  const bool repeats = first_difference(expected, plain()).empty();
  require(false, fmt::format("{}{}", difference,
                             repeats ? "" : "; but two plain runs differ as well: not repeatable"));
}

/// Switches autocast for a scope.
class Autocast {
 public:
  Autocast(const Where& where, at::ScalarType dtype)
      : type_(where.device.type()),
        was_on_(at::autocast::is_autocast_enabled(type_)),
        was_(at::autocast::get_autocast_dtype(type_)) {
    at::autocast::set_autocast_enabled(type_, true);
    at::autocast::set_autocast_dtype(type_, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, was_on_);
    at::autocast::set_autocast_dtype(type_, was_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType type_;
  bool was_on_;
  at::ScalarType was_;
};

[[nodiscard]] inline std::int64_t live(const Where& where) {
  return refrain::memory(where.device).live.count();
}

/// The same when nothing goes on any more: the device's thread may hold the last of a backward pass
/// for a moment after that has returned.
[[nodiscard]] inline std::int64_t settled_live(const Where& where) {
  synchronize(where);
  if (where.on_gpu()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return live(where);
}

/// The most bytes that lived during `work`, beyond those before it.
[[nodiscard]] inline std::int64_t peak_of(const Where& where, const std::function<void()>& work) {
  synchronize(where);
  const auto before = live(where);
  refrain::reset_peak(where.device);
  work();
  return refrain::memory(where.device).peak.count() - before;
}

/// Seconds of each variant until the device is done: medians of rounds in which all take turns.
[[nodiscard]] inline std::vector<double> medians(
    const Where& where, int rounds, const std::vector<std::function<void()>>& variants) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> times(variants.size());
  constexpr int kWarmUp = 2;
  for (int round = -kWarmUp; round < rounds; ++round) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      synchronize(where);
      const auto begin = Clock::now();
      variants[i]();
      synchronize(where);
      if (round >= 0)
        times[i].push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
  }
  std::vector<double> middle;
  for (auto& of_one : times) {
    const auto half = of_one.begin() + static_cast<std::ptrdiff_t>(of_one.size() / 2);
    std::nth_element(of_one.begin(), half, of_one.end());
    middle.push_back(*half);
  }
  return middle;
}

}  // namespace gpu_check
