// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/host_item.hpp>
#include <refrain/detail/host_memory.hpp>
#include <refrain/detail/short_what.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace refrain::tier {

/// Host memory: an accelerator's tensors wait there for backward.
///
///     auto block = refrain::checkpoint(Block(512), CheckpointOptions().tier(tier::host()));
///
/// Copies go both ways beside the device's work, on streams of their own, in pinned memory that is
/// used again. Memory that is on its way out is held on the device, at most `on_the_way` bytes of
/// it beside the newest: then the device waits for the oldest. A tensor that is on the host already
/// stays as it is: nothing is copied, and nothing freed.
///
/// Memory: as many pinned bytes as wait there at once, and what LibTorch's allocator of pinned
/// memory rounds up (to powers of two on CUDA). Errors: `TierError` if the host has no more.
class Host {
 public:
  /// 64 MiB: as long as 25 GB/s take about 2.5 ms, a block's time in training.
  static constexpr Bytes kOnTheWay{std::int64_t{64} << 20};

  explicit Host(Bytes on_the_way = kOnTheWay)
      : store_(std::make_shared<detail::HostStore>()),
        on_the_way_(detail::checked_window("host", on_the_way)) {}

  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    if (contents.is_cpu()) return std::make_unique<Here>(contents);
    const auto count = static_cast<std::int64_t>(contents.nbytes());
    detail::HostRoom room;
    try {
      room = store_->memory.take(count);
    } catch (const std::exception& error) {
      throw TierError(
          fmt::format("{} could not get {} of pinned memory.", describe(), Bytes(count)),
          fmt::format("the system says: {}", detail::short_what(error)),
          "give it a limit and a tier beyond it: limited(host(), bytes, disk(folder)).");
    }
    return std::make_unique<detail::HostItem>(
        contents, std::move(room), store_->out, on_the_way_,
        [store = store_](detail::HostRoom back) { store->memory.give_back(std::move(back)); });
  }
  [[nodiscard]] Bytes on_the_way() const { return on_the_way_; }
  [[nodiscard]] Host with_on_the_way(Bytes most) const {
    Host other = *this;
    other.on_the_way_ = most;
    return other;
  }
  [[nodiscard]] std::string describe() const { return "host()"; }

 private:
  /// What is on the host already.
  class Here final : public TierItem {
   public:
    explicit Here(at::Tensor contents) : contents_(std::move(contents)) {}
    at::Tensor get() override { return contents_; }

   private:
    at::Tensor contents_;
  };

  std::shared_ptr<detail::HostStore> store_;
  Bytes on_the_way_;
};

static_assert(StorageTier<Host>, "the host is a storage tier");

[[nodiscard]] inline Host host(Bytes on_the_way = Host::kOnTheWay) { return Host(on_the_way); }

}  // namespace refrain::tier
