// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace refrain::detail {

/// What is free of a range of addresses. A piece goes to the first gap that holds it; gaps that
/// meet become one.
class Gaps {
 public:
  Gaps(std::int64_t size, std::int64_t alignment) : alignment_(alignment) {
    if (size > 0) gaps_.emplace(0, size);
  }

  /// Where a piece of so many begins, if a gap holds it.
  [[nodiscard]] std::optional<std::int64_t> take(std::int64_t count) {
    const std::int64_t size = rounded(count);
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      const auto [begin, length] = *gap;
      if (length < size) continue;
      gaps_.erase(gap);
      if (length > size) gaps_.emplace(begin + size, length - size);
      return begin;
    }
    return std::nullopt;
  }

  void give_back(std::int64_t begin, std::int64_t count) {
    const auto gap = gaps_.emplace(begin, rounded(count)).first;
    if (const auto next = std::next(gap); next != gaps_.end()) join(gap, next);
    if (gap != gaps_.begin()) join(std::prev(gap), gap);
  }

  [[nodiscard]] std::int64_t longest() const {
    std::int64_t longest = 0;
    for (const auto& [begin, length] : gaps_) longest = std::max(longest, length);
    return longest;
  }

 private:
  using Map = std::map<std::int64_t, std::int64_t>;  ///< Length by begin.

  [[nodiscard]] std::int64_t rounded(std::int64_t count) const {
    return (count + alignment_ - 1) / alignment_ * alignment_;
  }
  void join(Map::iterator first, Map::iterator second) {
    if (first->first + first->second != second->first) return;
    first->second += second->second;
    gaps_.erase(second);
  }

  std::int64_t alignment_;
  Map gaps_;
};

}  // namespace refrain::detail
