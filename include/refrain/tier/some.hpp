// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/decorator.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

/// Tiers that take some of what comes; the rest stays on its device.
namespace refrain::tier {

/// What a tier has taken, and what it was offered, since it was last empty: of one step.
struct Offered {
  std::int64_t taken = 0;
  Bytes bytes_taken;
  Bytes bytes_offered;  ///< What comes now not counted.
};

/// A tier that takes what a rule wants of what it is offered. `first`, `fraction` and `at_least`
/// are the ready ones.
class Some : public detail::Decorator<Some> {
 public:
  using Wants = std::function<bool(const Offered& so_far, Bytes next)>;

  Some(std::string description, AnyTier upstream, Wants wants)
      : Decorator(std::move(upstream)),
        description_(std::move(description)),
        wants_(std::move(wants)),
        step_(std::make_shared<Step>()) {}

  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    const Bytes bytes(contents.nbytes());
    {
      const std::lock_guard<std::mutex> lock(step_->mutex);
      if (step_->held == 0 && step_->began) step_->offered = {};
      step_->began = false;
      const bool wanted = wants_(step_->offered, bytes);
      step_->offered.bytes_offered += bytes;
      if (!wanted) return nullptr;
      ++step_->offered.taken;
      step_->offered.bytes_taken += bytes;
      ++step_->held;
    }
    Held held(step_);
    auto item = upstream_.take(contents);
    if (item == nullptr) return nullptr;
    return std::make_unique<Item>(std::move(item), std::move(held));
  }
  [[nodiscard]] std::string describe() const { return description_; }

 private:
  struct Step {
    std::mutex mutex;
    Offered offered;
    std::int64_t held = 0;
    bool began = false;  ///< A step has ended: everything was given back.
  };

  /// One more in the tier.
  class Held {
   public:
    explicit Held(std::shared_ptr<Step> step) : step_(std::move(step)) {}
    Held(Held&&) = default;
    Held& operator=(Held&&) = delete;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
      if (step_ == nullptr) return;
      const std::lock_guard<std::mutex> lock(step_->mutex);
      if (--step_->held == 0) step_->began = true;
    }

   private:
    std::shared_ptr<Step> step_;
  };

  class Item final : public TierItem {
   public:
    Item(std::unique_ptr<TierItem> upstream, Held held)
        : held_(std::move(held)), upstream_(std::move(upstream)) {}
    void fetch() override { upstream_->fetch(); }
    at::Tensor get() override { return upstream_->get(); }

   private:
    Held held_;
    std::unique_ptr<TierItem> upstream_;
  };

  std::string description_;
  Wants wants_;
  std::shared_ptr<Step> step_;
};

static_assert(StorageTier<Some>, "a tier that takes some is a storage tier");

/// Takes the first `count` tensors of a step: those that backward needs last. A step ends when all
/// that it moved was given back.
[[nodiscard]] inline Some first(AnyTier upstream, std::int64_t count) {
  if (count < 0) throw OptionError(fmt::format("first(..., {}): not less than none.", count));
  auto description = fmt::format("first({}, {})", upstream, count);
  return {std::move(description), std::move(upstream),
          [count](const Offered& so_far, Bytes) { return so_far.taken < count; }};
}

/// Takes so large a share of the bytes of a step, between 0 and 1, spread evenly over it.
[[nodiscard]] inline Some fraction(AnyTier upstream, double share) {
  if (!(share >= 0 && share <= 1))
    throw OptionError(fmt::format("fraction(..., {}): a share lies between 0 and 1.", share));
  auto description = fmt::format("fraction({}, {})", upstream, share);
  return {std::move(description), std::move(upstream), [share](const Offered& so_far, Bytes next) {
            const auto offered = static_cast<double>((so_far.bytes_offered + next).count());
            return static_cast<double>((so_far.bytes_taken + next).count()) <= share * offered;
          }};
}

/// Takes what has at least so many bytes.
[[nodiscard]] inline Some at_least(AnyTier upstream, Bytes smallest) {
  auto description = fmt::format("at_least({}, {})", upstream, smallest);
  return {std::move(description), std::move(upstream),
          [smallest](const Offered&, Bytes next) { return next >= smallest; }};
}

}  // namespace refrain::tier
