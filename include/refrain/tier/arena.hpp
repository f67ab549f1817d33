// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/gaps.hpp>
#include <refrain/detail/host_item.hpp>
#include <refrain/detail/host_memory.hpp>
#include <refrain/detail/memory_view.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// One block of host memory that is cut into pieces.
class ArenaBlock {
 public:
  explicit ArenaBlock(Bytes size)
      : size_(size),
        block_(new_host_bytes(whole(size.count()), at::getAccelerator().has_value())),
        gaps_(block_.numel(), kAlignment) {}

  /// Room for so many bytes; its tensor is not defined if no gap holds them.
  HostRoom take(std::int64_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = gaps_.take(count);
    if (!begin) return {};
    std::erase_if(busy_, [](const Busy& busy) { return busy.until->query(); });
    HostRoom room{
        tensor_in(block_.storage(), block_.key_set(), block_.dtype(), {count}, {1}, *begin), {}};
    for (const Busy& busy : busy_) {
      if (busy.begin < *begin + count && *begin < busy.end) room.used_until.push_back(busy.until);
    }
    return room;
  }

  void give_back(const HostRoom& room) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::int64_t begin = room.bytes.storage_offset();
    gaps_.give_back(begin, room.bytes.numel());
    for (const auto& used : room.used_until)
      busy_.push_back({begin, begin + room.bytes.numel(), used});
  }

  [[nodiscard]] Bytes size() const { return size_; }
  [[nodiscard]] Bytes longest_gap() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return Bytes(gaps_.longest());
  }

 private:
  static constexpr std::int64_t kAlignment = 64;

  static std::int64_t whole(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Given back, but a copy may still go on.
  struct Busy {
    std::int64_t begin;
    std::int64_t end;
    std::shared_ptr<c10::Event> until;
  };

  Bytes size_;
  std::mutex mutex_;
  at::Tensor block_;
  Gaps gaps_;
  std::vector<Busy> busy_;
};

}  // namespace refrain::detail

namespace refrain::tier {

/// One block of host memory, taken when the tier is made: what waits there is never spread over the
/// heap, and no more than this is ever used.
///
///     auto waits = refrain::tier::arena(2_GiB);
///
/// Pinned where there is an accelerator, whose copies go beside its work, as `host()` has them; a
/// tensor on the host is copied in and out by the thread that asks. Each piece takes a multiple of
/// 64 bytes.
///
/// Errors: `TierError` if no gap holds what comes, with the longest one there is.
class Arena {
 public:
  explicit Arena(Bytes size, Bytes on_the_way)
      : store_(std::make_shared<Store>(checked(size))),
        on_the_way_(detail::checked_window("arena", on_the_way)) {}

  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    const auto count = static_cast<std::int64_t>(contents.nbytes());
    detail::HostRoom room = store_->block.take(count);
    if (!room.bytes.defined()) {
      throw TierError(fmt::format("{} has no room for {}.", describe(), Bytes(count)),
                      fmt::format("its longest gap is {}.", store_->block.longest_gap()),
                      "make it larger, or give it a tier beyond: limited(arena(bytes), bytes, "
                      "disk(folder)).");
    }
    auto give_back = [store = store_](const detail::HostRoom& back) {
      store->block.give_back(back);
    };
    if (contents.is_cpu())
      return std::make_unique<Copied>(contents, std::move(room), std::move(give_back));
    return std::make_unique<detail::HostItem>(contents, std::move(room), store_->out, on_the_way_,
                                              std::move(give_back));
  }
  [[nodiscard]] Bytes on_the_way() const { return on_the_way_; }
  [[nodiscard]] Bytes capacity() const { return store_->block.size(); }
  [[nodiscard]] Arena with_on_the_way(Bytes most) const {
    Arena other = *this;
    other.on_the_way_ = most;
    return other;
  }
  [[nodiscard]] std::string describe() const {
    return fmt::format("arena({})", store_->block.size());
  }

 private:
  struct Store {
    detail::ArenaBlock block;
    detail::OnTheWayOut out;
    explicit Store(Bytes size) : block(size) {}
  };

  /// Of a tensor on the host.
  class Copied final : public TierItem {
   public:
    Copied(const at::Tensor& contents, detail::HostRoom room, detail::GiveBack give_back)
        : dtype_(contents.dtype()), room_(std::move(room)), give_back_(std::move(give_back)) {
      for (const auto& used : std::exchange(room_.used_until, {})) used->synchronize();
      room_.bytes.copy_(detail::as_bytes(contents));
    }
    ~Copied() override { give_back_(std::move(room_)); }
    at::Tensor get() override {
      at::Tensor back = at::empty({room_.bytes.numel()}, at::dtype(at::kByte));
      back.copy_(room_.bytes);
      return detail::flat_as(back, dtype_);
    }

   private:
    caffe2::TypeMeta dtype_;
    detail::HostRoom room_;
    detail::GiveBack give_back_;
  };

  static Bytes checked(Bytes size) {
    if (size.count() < 1)
      throw OptionError(fmt::format("arena({}): it needs at least one byte.", size));
    return size;
  }

  std::shared_ptr<Store> store_;
  Bytes on_the_way_;
};

static_assert(StorageTier<Arena>, "an arena is a storage tier");

/// `on_the_way`: as `host` has it.
[[nodiscard]] inline Arena arena(Bytes size, Bytes on_the_way = Bytes(std::int64_t{64} << 20)) {
  return Arena(size, on_the_way);
}

}  // namespace refrain::tier
