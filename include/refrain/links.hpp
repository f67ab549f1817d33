// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/error.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refrain {

/// The way to a tier of storage and the way back: what moving memory there costs.
///
///     Links host{.tier = "host", .out = 12e9, .back = 12e9};
///     auto plan = refrain::plan(profile, 6_GiB, {host});
///
/// Copies of one direction follow each other; both directions, and other tiers' copies, go on
/// beside them and beside the computing.
struct Links {
  static constexpr double kMostRate = 1e15;  ///< Bytes per second; far from overflow as an integer.
  static constexpr Bytes kWindow = Bytes(std::int64_t{64} << 20);

  std::string tier = "host";
  double out = 0;             ///< Bytes per second from the device; 0: the tier is not used.
  double back = 0;            ///< Bytes per second to the device; 0: the tier is not used.
  double latency = 0;         ///< Seconds that each copy takes besides.
  Bytes capacity = kNoLimit;  ///< Of the tier.
  /// What may be on its way out before the computing waits, always at least what moved last.
  Bytes in_flight = kWindow;

  [[nodiscard]] bool usable() const { return out > 0 && back > 0; }
  [[nodiscard]] double seconds_out(std::int64_t bytes) const {
    return latency + static_cast<double>(bytes) / out;
  }
  [[nodiscard]] double seconds_back(std::int64_t bytes) const {
    return latency + static_cast<double>(bytes) / back;
  }

  friend bool operator==(const Links&, const Links&) = default;
};

/// "host: 11.18 GiB/s out, 11.18 GiB/s back, 20 us a copy".
[[nodiscard]] inline std::string to_string(const Links& links) {
  constexpr double kMicro = 1e6;
  std::string text = fmt::format("{}: {}/s out, {}/s back, {:.0f} us a copy", links.tier,
                                 Bytes(std::llround(links.out)), Bytes(std::llround(links.back)),
                                 links.latency * kMicro);
  if (links.capacity != kNoLimit) text += fmt::format(", at most {}", links.capacity);
  return text;
}

/// Throws `OptionError` if a rate, a latency or an amount cannot be.
inline void check(const Links& links) {
  const auto amount = [](double value) { return value >= 0 && value <= Links::kMostRate; };
  const bool good = amount(links.out) && amount(links.back) && amount(links.latency) &&
                    links.capacity >= Bytes() && links.in_flight >= Bytes();
  if (good) return;
  throw OptionError(
      fmt::format("links to {}: {} bytes/s out, {} back and {} s a copy, or {} of capacity and {} "
                  "in flight, cannot be.",
                  links.tier, links.out, links.back, links.latency, links.capacity,
                  links.in_flight),
      fmt::format("none is negative, and rates are at most {:g}: 0 stands for no link.",
                  Links::kMostRate));
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::Links> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::Links& links, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(links), context);
  }
};
