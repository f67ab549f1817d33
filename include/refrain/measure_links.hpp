// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/device_meter.hpp>
#include <refrain/links.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace refrain {
namespace detail {

/// Whether memory that a tier has taken is freed within so many seconds. What comes after it may be
/// what makes it go.
[[nodiscard]] inline bool has_left(const c10::weak_intrusive_ptr<c10::StorageImpl>& memory,
                                   const AnyTier& tier, c10::Device device, double patience) {
  constexpr auto kPause = std::chrono::microseconds(50);
  const auto begin = DeviceMeter::Clock::now();
  while (!memory.expired()) {
    if (DeviceMeter::seconds(begin, DeviceMeter::Clock::now()) > patience) return false;
    static_cast<void>(tier.take(at::ones({1}, at::dtype(at::kByte).device(device))));
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace detail

/// Measures the way to a tier and back: what `plan(profile, budget, {links})` goes by.
///
///     auto links = refrain::measure_links(refrain::tier::disk("/scratch"));
///     fmt::print("{}\n", links);   // "disk("/scratch"): 2.04 GiB/s out, ..."
///
/// Three times so many `bytes`, or half of what the tier holds, and as often one page, which gives
/// the time that each copy takes besides; medians. The time out ends when the memory is free. A
/// tier that leaves what it takes in the device's memory, as `host()` does for tensors of the host,
/// or holds but a few pages, comes out with rates of 0: plans do not use it.
///
/// Memory: `bytes`, in the tier and twice on the device. Time: besides the copies a fifth of a
/// second for a tier that frees nothing. Errors: `TierError` of the tier.
[[nodiscard]] inline Links measure_links(const AnyTier& tier, c10::Device device = c10::kCPU,
                                         Bytes bytes = Bytes(std::int64_t{16} << 20)) {
  constexpr int kRounds = 3;
  constexpr std::int64_t kPage = 4096;
  constexpr double kShort = 0.2;  // seconds
  constexpr double kLong = 60;
  const detail::DeviceMeter meter(device);
  struct Times {
    std::vector<double> out;
    std::vector<double> back;
  };
  const AnyTier one_by_one =
      tier.with_on_the_way(Bytes());  // so all the way out, and back from there
  const auto bytes_of = [&](std::int64_t count) {
    return at::ones({count}, at::dtype(at::kByte).device(device));
  };
  const auto once = [&](std::int64_t count, double patience, Times& times) {
    at::Tensor contents = bytes_of(count);
    const auto memory = contents.storage().getWeakStorageImpl();
    const auto begin = meter.now();
    const auto item = one_by_one.take(std::exchange(contents, {}));
    if (item == nullptr || !detail::has_left(memory, one_by_one, device, patience)) return false;
    const auto gone = meter.now();
    static_cast<void>(item->get());
    times.out.push_back(detail::DeviceMeter::seconds(begin, gone));
    times.back.push_back(detail::DeviceMeter::seconds(gone, meter.now()));
    return true;
  };
  Links links{.tier = tier.describe(), .capacity = tier.capacity(), .in_flight = tier.on_the_way()};
  const std::int64_t count = std::min(bytes, links.capacity / 2).count() / kPage * kPage;
  std::int64_t page = kPage;  // the least that it takes
  while (page < count && one_by_one.take(bytes_of(page)) == nullptr) page *= 2;
  bool moves = page < count;
  Times pages;
  Times all;
  for (int i = 0; i < kRounds && moves; ++i)
    moves = once(page, kShort, pages) && once(count, kLong, all);
  if (!moves) return links;
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  const auto rate = [&](const std::vector<double>& whole, const std::vector<double>& least) {
    const double seconds = std::max(median(whole) - median(least), 1e-9);
    return std::min(static_cast<double>(count - page) / seconds, Links::kMostRate);
  };
  links.out = rate(all.out, pages.out);
  links.back = rate(all.back, pages.back);
  links.latency = std::max(median(pages.out), median(pages.back));
  return links;
}

}  // namespace refrain
