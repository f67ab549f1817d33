// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/decorator.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace refrain::tier {

/// What went through a tier. `moved` and `fetched` count since the tier was made, `held` what is
/// there now.
struct Counts {
  std::int64_t moved = 0;    ///< Storages that it took.
  Bytes bytes_moved;         ///< Of those.
  std::int64_t fetched = 0;  ///< Times that one was asked for.
  Bytes bytes_fetched;
  std::int64_t held = 0;
  Bytes bytes_held;
  Bytes most_held;  ///< At once.
};

/// A tier that counts what goes through it.
///
///     auto waits = tier::counted(tier::host());
///     auto block = refrain::offload(Block(512), waits);
///     fmt::print("{}\n", waits.counts().bytes_moved);
class Counted : public detail::Decorator<Counted> {
 public:
  explicit Counted(AnyTier upstream)
      : Decorator(std::move(upstream)), meter_(std::make_shared<Meter>()) {}

  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    auto item = upstream_.take(contents);
    if (item == nullptr) return nullptr;
    return std::make_unique<Item>(std::move(item), static_cast<std::int64_t>(contents.nbytes()),
                                  meter_);
  }
  [[nodiscard]] std::string describe() const { return fmt::format("counted({})", upstream_); }

  [[nodiscard]] Counts counts() const {
    return {meter_->moved,
            Bytes(meter_->bytes_moved.load()),
            meter_->fetched,
            Bytes(meter_->bytes_fetched.load()),
            meter_->held,
            Bytes(meter_->bytes_held.load()),
            Bytes(meter_->most_held.load())};
  }

 private:
  struct Meter {
    std::atomic<std::int64_t> moved = 0;
    std::atomic<std::int64_t> bytes_moved = 0;
    std::atomic<std::int64_t> fetched = 0;
    std::atomic<std::int64_t> bytes_fetched = 0;
    std::atomic<std::int64_t> held = 0;
    std::atomic<std::int64_t> bytes_held = 0;
    std::atomic<std::int64_t> most_held = 0;
  };

  class Item final : public TierItem {
   public:
    Item(std::unique_ptr<TierItem> upstream, std::int64_t bytes, std::shared_ptr<Meter> meter)
        : upstream_(std::move(upstream)), bytes_(bytes), meter_(std::move(meter)) {
      ++meter_->moved;
      meter_->bytes_moved += bytes_;
      ++meter_->held;
      const std::int64_t held = meter_->bytes_held += bytes_;
      std::int64_t most = meter_->most_held;
      while (most < held && !meter_->most_held.compare_exchange_weak(most, held)) {
      }
    }
    ~Item() override {
      --meter_->held;
      meter_->bytes_held -= bytes_;
    }
    void fetch() override { upstream_->fetch(); }
    at::Tensor get() override {
      at::Tensor contents = upstream_->get();
      ++meter_->fetched;
      meter_->bytes_fetched += bytes_;
      return contents;
    }

   private:
    std::unique_ptr<TierItem> upstream_;
    std::int64_t bytes_;
    std::shared_ptr<Meter> meter_;
  };

  std::shared_ptr<Meter> meter_;
};

static_assert(StorageTier<Counted>, "a counted tier is a storage tier");

[[nodiscard]] inline Counted counted(AnyTier upstream) { return Counted(std::move(upstream)); }

}  // namespace refrain::tier
