// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace refrain::planner {

/// Plans none of which another beats: by rising peak and falling time.
template <class Plan>
class Staircase {
 public:
  struct Step {
    double seconds = 0;
    Plan plan;
  };
  using Steps = std::map<std::int64_t, Step>;  ///< By peak.

  /// Keeps what `make()` gives, if no plan within as many bytes takes as little time, and drops
  /// those that it beats.
  template <class Make>
  void add(std::int64_t peak, double seconds, const Make& make) {
    const auto before = within(peak);
    if (before != steps_.end() && before->second.seconds <= seconds) return;
    auto beaten = steps_.lower_bound(peak);
    while (beaten != steps_.end() && beaten->second.seconds >= seconds)
      beaten = steps_.erase(beaten);
    steps_.insert_or_assign(peak, Step{seconds, make()});
  }

  /// The fastest within so many bytes, or `steps().end()`.
  [[nodiscard]] typename Steps::const_iterator within(std::int64_t bytes) const {
    const auto above = steps_.upper_bound(bytes);
    return above == steps_.begin() ? steps_.end() : std::prev(above);
  }

  [[nodiscard]] const Steps& steps() const { return steps_; }

 private:
  Steps steps_;
};

}  // namespace refrain::planner
