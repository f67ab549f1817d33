// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/host_item.hpp>
#include <refrain/detail/memory_view.hpp>
#include <refrain/detail/side_streams.hpp>
#include <refrain/error.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Host memory for copies, `pinned`: locked in place, as an accelerator needs it to copy beside its
/// work. Throws what LibTorch throws if there is none left.
[[nodiscard]] inline at::Tensor new_host_bytes(std::int64_t count, bool pinned) {
  return at::empty({count}, at::dtype(at::kByte).device(at::kCPU).pinned_memory(pinned));
}

/// Throws `OptionError` if what may be on its way to `tier` is less than nothing.
[[nodiscard]] inline Bytes checked_window(std::string_view tier, Bytes on_the_way) {
  if (on_the_way.count() >= 0) return on_the_way;
  throw OptionError(fmt::format("{}(...): {} on the way cannot be.", tier, on_the_way),
                    "0 lets the newest alone be on its way.");
}

/// The first `count` bytes of more.
[[nodiscard]] inline at::Tensor first_bytes(const at::Tensor& all, std::int64_t count) {
  return tensor_in(all.storage(), all.key_set(), all.dtype(), {count}, {1}, all.storage_offset());
}

/// Host memory that is used again: a training step asks for the same sizes as the one before.
///
/// What nobody uses is kept as long as it is no more than was ever used at once. LibTorch's
/// allocator of pinned memory waits by itself for copies of what goes.
class HostMemory {
 public:
  explicit HostMemory(bool pinned) : pinned_(pinned) {}

  HostRoom take(std::int64_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_ += count;
    most_used_ = std::max(most_used_, used_);
    const auto fits = [count](const HostRoom& room) {
      const auto size = static_cast<std::int64_t>(room.bytes.storage().nbytes());
      return size >= count && size - count <= count / kMostWasted;
    };
    const auto found = std::find_if(free_.rbegin(), free_.rend(), fits);
    if (found == free_.rend()) return {new_host_bytes(count, pinned_), {}};
    HostRoom room = std::move(*found);
    free_.erase(std::next(found).base());
    free_bytes_ -= size_of(room);
    room.bytes =
        tensor_in(room.bytes.storage(), room.bytes.key_set(), room.bytes.dtype(), {count}, {1}, 0);
    return room;
  }

  void give_back(HostRoom room) {
    std::vector<HostRoom> go;  // destroyed after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    used_ -= room.bytes.numel();
    free_bytes_ += size_of(room);
    free_.push_back(std::move(room));
    while (free_bytes_ + used_ > most_used_ + most_used_ / kMostWasted) {
      free_bytes_ -= size_of(free_.front());
      go.push_back(std::move(free_.front()));
      free_.erase(free_.begin());
    }
  }

 private:
  static constexpr std::int64_t kMostWasted = 8;  ///< One part in so many.

  [[nodiscard]] static std::int64_t size_of(const HostRoom& room) {
    return static_cast<std::int64_t>(room.bytes.storage().nbytes());
  }

  std::mutex mutex_;
  bool pinned_;
  std::vector<HostRoom> free_;  ///< The one given back last is last.
  std::int64_t free_bytes_ = 0;
  std::int64_t used_ = 0;
  std::int64_t most_used_ = 0;
};

/// What of an accelerator's memory waits on the host: the host's memory, and the way there.
struct HostStore {
  HostMemory memory{/*pinned=*/true};
  OnTheWayOut out;
};

}  // namespace refrain::detail
