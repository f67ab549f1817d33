// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/random_state.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace refrain::detail {

/// A replay's turn at the generators that it puts back. Without it two replays, on the threads of two devices, would
/// disturb each other's numbers where they draw from one generator: the CPU's, say.
///
/// A region nested in another finds its generators held by its own thread already.
class RandomTurn {
 public:
  explicit RandomTurn(const std::vector<RandomState>& states) {
    for (const RandomState& state : states) {
      held_ |= std::uint64_t{1} << (reinterpret_cast<std::uintptr_t>(state.generator()) / 64 % kTurns);
    }
    // Always in the same order, or two replays could wait for each other.
    for (std::size_t i = 0; i < kTurns && held_ != 0; ++i) {
      if (holds(i)) turns_[i].lock();
    }
  }
  ~RandomTurn() {
    for (std::size_t i = 0; i < kTurns && held_ != 0; ++i) {
      if (holds(i)) turns_[i].unlock();
    }
  }
  RandomTurn(const RandomTurn&) = delete;
  RandomTurn& operator=(const RandomTurn&) = delete;

 private:
  static constexpr std::size_t kTurns = 64;
  [[nodiscard]] bool holds(std::size_t i) const { return (held_ >> i & 1) != 0; }

  // Generators that meet in one of these by chance only wait a little longer.
  static inline std::array<std::recursive_mutex, kTurns> turns_;
  std::uint64_t held_ = 0;
};

}  // namespace refrain::detail
