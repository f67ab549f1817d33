// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <concepts>
#include <memory>
#include <string>
#include <utility>

namespace refrain {

/// What a tier holds of one tensor's memory, and the way back. It is destroyed when nobody will ask
/// any more, which gives its room back.
///
/// `fetch` and `get` may be called from other threads than the one that moved it, one at a time.
class TierItem {
 public:
  TierItem() = default;
  TierItem(const TierItem&) = delete;
  TierItem& operator=(const TierItem&) = delete;
  virtual ~TierItem() = default;

  /// Starts the way back if it can go on by itself, and returns at once: `get` will be called soon.
  virtual void fetch() {}

  /// The contents as they were taken, with the same dtype and number of elements, on the device
  /// that they came from; what is put on its current stream afterwards sees them. Throws
  /// `TierError` if they cannot be had; another call may try again.
  [[nodiscard]] virtual at::Tensor get() = 0;
};

/// A place where memory waits that nobody needs before backward.
///
///     struct Elsewhere {
///       std::unique_ptr<TierItem> take(const at::Tensor& contents) const;
///       std::string describe() const { return "elsewhere()"; }
///     };
///
/// `take` gets the memory as a flat contiguous tensor that nobody else holds, of the dtype it was
/// saved as (bytes, where it was saved as several), and owns it from then on. What fills it is on
/// the current stream of its device, if not done. Null leaves it where it is. Throws `TierError` if
/// the tier fails; nothing is lost then, the caller still has it. A tier is copyable, and
/// copies share what it holds; several threads may call it.
template <class Tier>
concept StorageTier = requires(const Tier& tier, const at::Tensor& contents) {
  { tier.take(contents) } -> std::same_as<std::unique_ptr<TierItem>>;
  { tier.describe() } -> std::convertible_to<std::string>;
};

/// Any storage tier, as one type: what options and decorators take.
///
///     AnyTier where = tier::host();
///     fmt::print("{}\n", where);   // "host()"
class AnyTier {
 public:
  /// None: what is kept stays where it is.
  AnyTier() = default;
  template <class Tier>
    requires(!std::same_as<Tier, AnyTier> && StorageTier<Tier>)
  AnyTier(Tier tier)  // implicit: every tier is one
      : held_(std::make_shared<const Held<Tier>>(std::move(tier))) {
    static_assert(std::copyable<Tier>, "refrain: a storage tier is copyable");
  }

  [[nodiscard]] explicit operator bool() const { return held_ != nullptr; }
  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    return held_ == nullptr ? nullptr : held_->take(contents);
  }
  /// What may still be on its device although the tier has taken it, beside the newest: what the
  /// tier's own `on_the_way()` says; 0 if it has none.
  [[nodiscard]] Bytes on_the_way() const {
    return held_ == nullptr ? Bytes() : held_->on_the_way();
  }
  /// What it holds of what it is given at most: what the tier's own `capacity()` says; no limit if
  /// it has none.
  [[nodiscard]] Bytes capacity() const { return held_ == nullptr ? Bytes() : held_->capacity(); }
  /// The same tier with another amount on the way, if it can have one.
  [[nodiscard]] AnyTier with_on_the_way(Bytes most) const {
    return held_ == nullptr ? AnyTier() : held_->with_on_the_way(*this, most);
  }
  [[nodiscard]] std::string describe() const {
    return held_ == nullptr ? "none" : held_->describe();
  }

 private:
  struct AnyHeld {
    virtual ~AnyHeld() = default;
    [[nodiscard]] virtual std::unique_ptr<TierItem> take(const at::Tensor& contents) const = 0;
    [[nodiscard]] virtual Bytes on_the_way() const = 0;
    [[nodiscard]] virtual Bytes capacity() const = 0;
    [[nodiscard]] virtual AnyTier with_on_the_way(const AnyTier& self, Bytes most) const = 0;
    [[nodiscard]] virtual std::string describe() const = 0;
  };
  template <class Tier>
  struct Held final : AnyHeld {
    explicit Held(Tier given) : tier(std::move(given)) {}
    [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const override {
      return tier.take(contents);
    }
    [[nodiscard]] Bytes on_the_way() const override {
      if constexpr (requires { tier.on_the_way(); }) return tier.on_the_way();
      return {};
    }
    [[nodiscard]] Bytes capacity() const override {
      if constexpr (requires { tier.capacity(); }) return tier.capacity();
      return kNoLimit;
    }
    [[nodiscard]] AnyTier with_on_the_way(const AnyTier& self, Bytes most) const override {
      if constexpr (requires { tier.with_on_the_way(most); }) return tier.with_on_the_way(most);
      return self;
    }
    [[nodiscard]] std::string describe() const override { return tier.describe(); }
    Tier tier;
  };

  std::shared_ptr<const AnyHeld> held_;
};

static_assert(StorageTier<AnyTier>, "any tier is one");

/// What a region moves, and where to.
struct TierUse {
  AnyTier tier;
  Bytes smallest{4096};  ///< Less than that stays: moving a page costs more than it frees.

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(tier); }
};

}  // namespace refrain

template <refrain::StorageTier Tier>
struct fmt::formatter<Tier, char> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const Tier& tier, Context& context) const {
    const std::string& text = tier.describe();
    return fmt::formatter<fmt::string_view>::format(text, context);
  }
};
