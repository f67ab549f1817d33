// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace refrain::tier {

/// A tier that holds at most so many bytes; the rest, and what it fails to take, goes to another,
/// or is refused.
///
///     auto waits = tier::limited(tier::host(), 8_GiB, tier::disk("/scratch"));
///
/// Errors: without `beyond`, `TierError` where the limit is reached.
class Limited {
 public:
  Limited(AnyTier upstream, Bytes limit, AnyTier beyond = {})
      : upstream_(std::move(upstream)),
        limit_(limit),
        beyond_(std::move(beyond)),
        held_(std::make_shared<std::atomic<std::int64_t>>(0)) {
    if (limit.count() < 0)
      throw OptionError(fmt::format("limited(..., {}): a limit is not negative.", limit));
  }

  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    const auto count = static_cast<std::int64_t>(contents.nbytes());
    std::int64_t held = *held_;
    while (held <= limit_.count() - count && !held_->compare_exchange_weak(held, held + count)) {
    }
    if (held > limit_.count() - count) {
      if (beyond_) return beyond_.take(contents);
      throw TierError(fmt::format("{} has no room for {}.", describe(), Bytes(count)),
                      fmt::format("it holds {}.", Bytes(held)),
                      "raise the limit, or name a tier beyond it: limited(tier, bytes, beyond).");
    }
    Share share(held_, count);
    std::unique_ptr<TierItem> item;
    try {
      item = upstream_.take(contents);
    } catch (const TierError&) {  // an arena may have no gap although it has the bytes
      if (!beyond_) throw;
      return beyond_.take(contents);
    }
    if (item == nullptr) return nullptr;
    return std::make_unique<Item>(std::move(item), std::move(share));
  }
  [[nodiscard]] Bytes on_the_way() const {
    const Bytes beyond = beyond_.on_the_way();
    return std::min(upstream_.on_the_way(), kNoLimit - beyond) + beyond;
  }
  /// What the first takes: a plan, which goes by one speed, names the tier beyond by itself.
  [[nodiscard]] Bytes capacity() const { return std::min(limit_, upstream_.capacity()); }
  [[nodiscard]] Limited with_on_the_way(Bytes most) const {
    Limited other = *this;
    const Bytes beyond = beyond_ ? most / 2 : Bytes();
    other.upstream_ = upstream_.with_on_the_way(most - beyond);
    other.beyond_ = beyond_.with_on_the_way(beyond);
    return other;
  }
  [[nodiscard]] std::string describe() const {
    return beyond_ ? fmt::format("limited({}, {}, {})", upstream_, limit_, beyond_)
                   : fmt::format("limited({}, {})", upstream_, limit_);
  }

 private:
  /// Of the limit: gives back what was taken of it.
  class Share {
   public:
    Share(std::shared_ptr<std::atomic<std::int64_t>> held, std::int64_t count)
        : held_(std::move(held)), count_(count) {}
    Share(Share&&) = default;
    Share& operator=(Share&&) = delete;
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() {
      if (held_ != nullptr) *held_ -= count_;
    }

   private:
    std::shared_ptr<std::atomic<std::int64_t>> held_;
    std::int64_t count_;
  };

  class Item final : public TierItem {
   public:
    Item(std::unique_ptr<TierItem> upstream, Share share)
        : share_(std::move(share)), upstream_(std::move(upstream)) {}
    void fetch() override { upstream_->fetch(); }
    at::Tensor get() override { return upstream_->get(); }

   private:
    Share share_;  // given back after the item
    std::unique_ptr<TierItem> upstream_;
  };

  AnyTier upstream_;
  Bytes limit_;
  AnyTier beyond_;
  std::shared_ptr<std::atomic<std::int64_t>> held_;
};

static_assert(StorageTier<Limited>, "a limited tier is a storage tier");

[[nodiscard]] inline Limited limited(AnyTier upstream, Bytes limit, AnyTier beyond = {}) {
  return {std::move(upstream), limit, std::move(beyond)};
}

}  // namespace refrain::tier
