// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace refrain {

/// A number of bytes, so that no one passes bytes for megabytes.
///
///     using namespace refrain::literals;
///     constexpr Bytes budget = 6_GiB;
///     fmt::print("{} of {}\n", used, budget);   // "512 B of 6.00 GiB"
///
/// A difference may be negative. `a / b` of two amounts is their ratio, a double.
class Bytes {
 public:
  constexpr Bytes() = default;
  template <std::integral Integer>
  constexpr explicit Bytes(Integer count) : count_(static_cast<std::int64_t>(count)) {}

  [[nodiscard]] constexpr std::int64_t count() const { return count_; }

  constexpr Bytes& operator+=(Bytes other) { return *this = *this + other; }
  constexpr Bytes& operator-=(Bytes other) { return *this = *this - other; }

  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  friend constexpr Bytes operator-(Bytes a) { return Bytes(-a.count_); }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  template <std::integral Integer>
  friend constexpr Bytes operator*(Bytes a, Integer times) {
    return Bytes(a.count_ * static_cast<std::int64_t>(times));
  }
  template <std::integral Integer>
  friend constexpr Bytes operator*(Integer times, Bytes a) {
    return a * times;
  }
  template <std::integral Integer>
  friend constexpr Bytes operator/(Bytes a, Integer parts) {
    return Bytes(a.count_ / static_cast<std::int64_t>(parts));
  }
  friend constexpr double operator/(Bytes a, Bytes b) {
    return static_cast<double>(a.count_) / static_cast<double>(b.count_);
  }

 private:
  std::int64_t count_ = 0;
};

/// More than any tier holds.
inline constexpr Bytes kNoLimit{std::numeric_limits<std::int64_t>::max()};

/// "512 B", "1.50 GiB": the largest unit that leaves at least one of it, two decimals.
[[nodiscard]] inline std::string to_string(Bytes bytes) {
  constexpr std::array<std::string_view, 7> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  constexpr double kRoundsUpTo1024 = 1023.995;
  auto value = static_cast<double>(bytes.count());
  if (std::abs(value) < 1024) return fmt::format("{} B", bytes.count());
  std::size_t unit = 0;
  for (; std::abs(value) >= kRoundsUpTo1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.2f} {}", value, kUnits.at(unit));
}

/// "512", "64KiB", "1.5 GiB", "80GB": a number, then a unit of 1024 (KiB, MiB, GiB, TiB) or of 1000
/// (KB, MB, GB, TB), or B, or none. Empty if the text is anything else, or 2⁶³ bytes or more.
[[nodiscard]] inline std::optional<Bytes> bytes_from(std::string_view text) {
  constexpr std::string_view kPrefixes = "KMGT";
  constexpr double kMost = 9223372036854775807.0;
  double amount = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), amount);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(stop - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.ends_with('B')) unit.remove_suffix(1);
  const double base = unit.ends_with('i') ? 1024 : 1000;
  if (unit.ends_with('i')) unit.remove_suffix(1);
  double scale = 1;
  if (!unit.empty()) {
    const std::size_t power = kPrefixes.find(unit);
    if (unit.size() != 1 || power == std::string_view::npos || text.back() != 'B')
      return std::nullopt;
    scale = std::pow(base, static_cast<double>(power + 1));
  } else if (base == 1024) {
    return std::nullopt;
  }
  const double bytes = std::round(amount * scale);
  if (!(bytes >= 0 && bytes < kMost)) return std::nullopt;
  return Bytes(static_cast<std::int64_t>(bytes));
}

namespace detail {

/// A function that is not constexpr: reaching it in a constant expression is the compile error.
inline void bytes_literal_is_too_large() {}

consteval Bytes bytes_literal(unsigned long long amount, unsigned long long unit) {
  constexpr unsigned long long kMost = std::numeric_limits<std::int64_t>::max();
  if (amount > kMost / unit) bytes_literal_is_too_large();
  return Bytes(amount * unit);
}

}  // namespace detail

/// `512_B`, `64_KiB`, `48_MiB`, `6_GiB`; a literal that does not fit does not compile.
namespace literals {

consteval Bytes operator""_B(unsigned long long n) { return detail::bytes_literal(n, 1); }
consteval Bytes operator""_KiB(unsigned long long n) {
  return detail::bytes_literal(n, 1ULL << 10);
}
consteval Bytes operator""_MiB(unsigned long long n) {
  return detail::bytes_literal(n, 1ULL << 20);
}
consteval Bytes operator""_GiB(unsigned long long n) {
  return detail::bytes_literal(n, 1ULL << 30);
}

}  // namespace literals
}  // namespace refrain

template <>
struct fmt::formatter<refrain::Bytes> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(refrain::Bytes bytes, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(bytes), context);
  }
};
