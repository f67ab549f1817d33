// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace refrain::detail {

/// A replay's turn at what it exchanges for its length: generators, buffers. Without it two
/// replays, on the threads of two devices or in two threads that share a module, would take each
/// other's values for their own.
///
/// A region nested in another finds its things held by its own thread already. Who needs both kinds
/// takes buffers first, or two replays could wait for each other.
class Turn {
 public:
  enum class At { Buffers, Generators };

  Turn(At kind, const std::vector<const void*>& things)
      : turns_(kind == At::Buffers ? buffers_ : generators_) {
    for (const void* thing : things) {
      held_ |= std::uint64_t{1} << (reinterpret_cast<std::uintptr_t>(thing) / 64 % kTurns);
    }
    // Always in the same order, or two replays could wait for each other.
    for (std::size_t i = 0; i < kTurns && held_ != 0; ++i) {
      if (holds(i)) turns_[i].lock();
    }
  }
  ~Turn() {
    for (std::size_t i = 0; i < kTurns && held_ != 0; ++i) {
      if (holds(i)) turns_[i].unlock();
    }
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static constexpr std::size_t kTurns = 64;
  [[nodiscard]] bool holds(std::size_t i) const { return (held_ >> i & 1) != 0; }

  // Things that meet in one of these by chance only wait a little longer.
  using Turns = std::array<std::recursive_mutex, kTurns>;
  static inline Turns buffers_;
  static inline Turns generators_;

  Turns& turns_;
  std::uint64_t held_ = 0;
};

}  // namespace refrain::detail
