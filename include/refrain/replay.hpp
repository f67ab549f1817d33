// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace refrain {
namespace detail {

/// What regions know of the thread they run on.
struct ThreadState {
  int replays = 0;     ///< Replays that run now, nested ones included.
  bool plain = false;  ///< A `PlainScope` lives.
};

inline constinit thread_local ThreadState thread_state;

/// Replays begun in this process so far, on any thread.
inline std::atomic<std::uint64_t> replays_begun = 0;

/// Marks this thread as replaying while it lives.
class ReplayMark {
 public:
  ReplayMark() : plain_before_(std::exchange(thread_state.plain, false)) {
    ++thread_state.replays;
    replays_begun.fetch_add(1, std::memory_order_relaxed);
  }
  ~ReplayMark() {
    --thread_state.replays;
    thread_state.plain = plain_before_;
  }
  ReplayMark(const ReplayMark&) = delete;
  ReplayMark& operator=(const ReplayMark&) = delete;

 private:
  bool plain_before_;
};

}  // namespace detail

/// True while the calling thread is inside a replay, at any depth: for code that must run once a
/// step.
///
///     if (!refrain::replaying()) ++tokens_seen;
[[nodiscard]] inline bool replaying() { return detail::thread_state.replays > 0; }

/// Regions called on this thread while it lives are plain calls: for comparing with and without.
///
///     refrain::PlainScope plain;
///     auto expected = net(x);   // remembers everything, replays nothing
class PlainScope {
 public:
  PlainScope() : before_(std::exchange(detail::thread_state.plain, true)) {}
  ~PlainScope() { detail::thread_state.plain = before_; }
  PlainScope(const PlainScope&) = delete;
  PlainScope& operator=(const PlainScope&) = delete;

 private:
  bool before_;
};

}  // namespace refrain
