// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace refrain::detail {

/// A small hash map from addresses to numbers: open addressing, no allocation up to 24 entries,
/// nothing is erased.
class PointerMap {
 public:
  static constexpr std::int64_t kAbsent = -1;

  [[nodiscard]] std::int64_t find(const void* key) const {
    for (std::size_t i = slot(key);; i = (i + 1) & mask_) {
      const Entry& entry = entries()[i];
      if (entry.key == key) return entry.value;
      if (entry.key == nullptr) return kAbsent;
    }
  }

  /// Sets the number of `key`; true if it was not there before.
  bool set(const void* key, std::int64_t value) {
    if ((count_ + 1) * 4 > (mask_ + 1) * 3) grow();
    for (std::size_t i = slot(key);; i = (i + 1) & mask_) {
      Entry& entry = entries()[i];
      if (entry.key != nullptr && entry.key != key) continue;
      const bool is_new = entry.key == nullptr;
      entry = {key, value};
      count_ += is_new ? 1 : 0;
      return is_new;
    }
  }

 private:
  struct Entry {
    const void* key = nullptr;
    std::int64_t value = 0;
  };

  static constexpr std::size_t kInline = 32;

  [[nodiscard]] std::size_t slot(const void* key) const {
    const auto bits = reinterpret_cast<std::uintptr_t>(key);
    return ((bits >> 4) * 0x9E3779B97F4A7C15ULL >> 20) & mask_;
  }

  [[nodiscard]] const Entry* entries() const {
    return heap_.empty() ? inline_.data() : heap_.data();
  }
  [[nodiscard]] Entry* entries() { return heap_.empty() ? inline_.data() : heap_.data(); }

  void grow() {
    const Entry* const old = entries();
    const std::size_t old_size = mask_ + 1;
    std::vector<Entry> bigger(old_size * 4);
    mask_ = bigger.size() - 1;
    for (std::size_t i = 0; i < old_size; ++i) {
      if (old[i].key == nullptr) continue;
      std::size_t j = slot(old[i].key);
      while (bigger[j].key != nullptr) j = (j + 1) & mask_;
      bigger[j] = old[i];
    }
    heap_ = std::move(bigger);
  }

  std::array<Entry, kInline> inline_{};
  std::vector<Entry> heap_;
  std::size_t mask_ = kInline - 1;
  std::size_t count_ = 0;
};

}  // namespace refrain::detail
