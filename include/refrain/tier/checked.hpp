// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/decorator.hpp>
#include <refrain/detail/fingerprint.hpp>
#include <refrain/detail/memory_view.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace refrain::tier {

/// A tier whose returns are compared, by a fingerprint of each 4 KiB, with what went in: for
/// finding tiers, drivers or disks that give back something else.
///
///     auto waits = tier::checked(tier::disk("/scratch"));
///
/// The bytes are looked at on the stream that is current when they are asked for, and on no other:
/// a return that is not ordered behind its copy is found as well.
///
/// Time: one pass over the bytes each way, and the device's thread waits for it. Memory: a
/// five-hundredth. Errors: `TierError` from `get` if something else came back.
class Checked : public detail::Decorator<Checked> {
 public:
  explicit Checked(AnyTier upstream) : Decorator(std::move(upstream)) {}

  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    const detail::Fingerprint before(detail::as_bytes(contents));
    auto item = upstream_.take(contents);
    if (item == nullptr) return nullptr;
    return std::make_unique<Item>(std::move(item), before, Bytes(contents.nbytes()), describe());
  }
  [[nodiscard]] std::string describe() const { return fmt::format("checked({})", upstream_); }

 private:
  class Item final : public TierItem {
   public:
    Item(std::unique_ptr<TierItem> upstream, detail::Fingerprint before, Bytes bytes,
         std::string who)
        : upstream_(std::move(upstream)),
          before_(std::move(before)),
          bytes_(bytes),
          who_(std::move(who)) {}
    void fetch() override { upstream_->fetch(); }
    at::Tensor get() override {
      at::Tensor contents = upstream_->get();
      if (const auto block = before_.first_difference(detail::as_bytes(contents))) {
        throw TierError(
            fmt::format("{} gave back something else than it took.", who_),
            fmt::format("of {}, the first difference is in the 4 KiB from byte {} on.", bytes_,
                        *block * detail::Fingerprint::kBlock),
            "likely cause: the copy was not over where its result is used, its memory was used "
            "for something else, or the medium failed.");
      }
      return contents;
    }

   private:
    std::unique_ptr<TierItem> upstream_;
    detail::Fingerprint before_;
    Bytes bytes_;
    std::string who_;
  };
};

static_assert(StorageTier<Checked>, "a checked tier is a storage tier");

[[nodiscard]] inline Checked checked(AnyTier upstream) { return Checked(std::move(upstream)); }

}  // namespace refrain::tier
