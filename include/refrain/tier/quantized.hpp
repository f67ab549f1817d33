// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/decorator.hpp>
#include <refrain/detail/memory_view.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace refrain::detail {

/// Floating-point numbers in 8 or 4 bits each: in blocks of 64, as multiples of the block's largest
/// magnitude over 127 or 7.
class BlockCode {
 public:
  static constexpr std::int64_t kBlock = 64;

  explicit BlockCode(std::int64_t bits)
      : bits_(bits), steps_((std::int64_t{1} << (bits - 1)) - 1) {}

  /// Bytes for so many numbers.
  [[nodiscard]] std::int64_t bytes_for(std::int64_t count) const {
    return blocks_for(count) * bytes_per_block();
  }

  /// Not defined if a number is not finite, or too large for float.
  [[nodiscard]] at::Tensor encode(const at::Tensor& numbers) const {
    const std::int64_t count = numbers.numel();
    at::Tensor all = at::empty({bytes_for(count)}, numbers.options().dtype(at::kByte));
    for (std::int64_t begin = 0; begin < count; begin += kAtOnce) {
      const std::int64_t end = std::min(begin + kAtOnce, count);
      const at::Tensor part = encode_part(numbers.slice(0, begin, end));
      if (!part.defined()) return {};
      all.narrow(0, begin / kBlock * bytes_per_block(), part.numel()).copy_(part);
    }
    return all;
  }

  void decode(const at::Tensor& code, const at::Tensor& numbers) const {
    const std::int64_t count = numbers.numel();
    for (std::int64_t begin = 0; begin < count; begin += kAtOnce) {
      const std::int64_t end = std::min(begin + kAtOnce, count);
      const at::Tensor part = code.narrow(0, begin / kBlock * bytes_per_block(),
                                          blocks_for(end - begin) * bytes_per_block());
      numbers.slice(0, begin, end).copy_(decode_part(part).slice(0, 0, end - begin));
    }
  }

 private:
  static constexpr std::int64_t kAtOnce = std::int64_t{1} << 18;  ///< Numbers: for less memory.
  static constexpr double kLeastStep = 1.2e-38;  ///< The least normal float, about.
  static constexpr std::int64_t kScale = 4;  ///< Bytes: each block begins with its step, a float.

  static std::int64_t blocks_for(std::int64_t count) { return (count + kBlock - 1) / kBlock; }
  [[nodiscard]] std::int64_t bytes_per_block() const { return kScale + kBlock * bits_ / 8; }

  [[nodiscard]] at::Tensor encode_part(const at::Tensor& numbers) const {
    const std::int64_t blocks = blocks_for(numbers.numel());
    at::Tensor x = numbers.to(at::kFloat);
    if (x.numel() != blocks * kBlock) x = at::constant_pad_nd(x, {0, blocks * kBlock - x.numel()});
    x = x.view({blocks, kBlock});
    const at::Tensor step = x.abs().amax(1, /*keepdim=*/true).div_(static_cast<double>(steps_));
    // The largest number must come back finite, and steps must be fine enough to count by.
    const at::Tensor fits = at::isfinite(step * static_cast<double>(steps_))
                                .logical_and((step == 0).logical_or(step >= kLeastStep));
    if (!fits.all().item<bool>()) return {};
    at::Tensor code = x.div(at::where(step == 0, at::ones_like(step), step)).round_();
    code = code.add_(static_cast<double>(steps_)).to(at::kByte);  // 0 .. 2 steps
    if (bits_ == 4) {
      const at::Tensor pairs = code.view({blocks, kBlock / 2, 2});
      code = pairs.select(2, 0) + pairs.select(2, 1) * 16;
    }
    return at::cat({step.contiguous().view(at::kByte), code}, 1).view({-1});
  }

  [[nodiscard]] at::Tensor decode_part(const at::Tensor& bytes) const {
    const at::Tensor blocks = bytes.view({-1, bytes_per_block()});
    const at::Tensor step = blocks.narrow(1, 0, kScale).contiguous().view(at::kFloat);
    at::Tensor code = blocks.narrow(1, kScale, bytes_per_block() - kScale);
    if (bits_ == 4) {
      const at::Tensor high = at::div(code, 16, "floor");
      code = at::stack({code - high * 16, high}, 2).view({code.size(0), kBlock});
    }
    return code.to(at::kFloat).sub_(static_cast<double>(steps_)).mul_(step).view({-1});
  }

  std::int64_t bits_;
  std::int64_t steps_;
};

}  // namespace refrain::detail

namespace refrain::tier {

/// A tier that holds floating-point tensors in 8 or 4 bits a number: **gradients are no longer
/// exact**. The forward is.
///
///     auto waits = tier::quantized(tier::host(), 8);
///
/// Error: a number that comes back differs from what went by at most half a step, a step being the
/// largest magnitude among the 64 numbers around it over 127 (8 bits) or 7 (4 bits), and what
/// rounding to float and to its own dtype adds. The 64 are those that lie together in memory, also
/// where a region saved only some of them. Integers, booleans and memory that is seen through
/// several dtypes go as they are, and so does what holds numbers that are not finite, or so small
/// or large that float cannot count by such steps.
///
/// Memory: 68 or 36 bytes for 64 numbers, and about 5 MiB while it works. Time: some passes over
/// the numbers each way, and the device's thread waits for one. Errors: `OptionError` for other
/// bits.
class Quantized : public detail::Decorator<Quantized> {
 public:
  Quantized(AnyTier upstream, std::int64_t bits)
      : Decorator(std::move(upstream)), bits_(bits), code_(checked(bits)) {}

  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    if (!contents.is_floating_point()) return upstream_.take(contents);
    const at::Tensor code = code_.encode(contents);
    if (!code.defined()) return upstream_.take(contents);
    auto item = upstream_.take(code);
    if (item == nullptr) return nullptr;
    return std::make_unique<Item>(std::move(item), code_, contents);
  }
  [[nodiscard]] std::string describe() const {
    return fmt::format("quantized({}, {})", upstream_, bits_);
  }

 private:
  class Item final : public TierItem {
   public:
    Item(std::unique_ptr<TierItem> upstream, detail::BlockCode code, const at::Tensor& contents)
        : upstream_(std::move(upstream)),
          code_(code),
          options_(contents.options()),
          count_(contents.numel()) {}
    void fetch() override { upstream_->fetch(); }
    at::Tensor get() override {
      const at::Tensor code = upstream_->get();
      at::Tensor numbers = at::empty({count_}, options_);
      code_.decode(code, numbers);
      return numbers;
    }

   private:
    std::unique_ptr<TierItem> upstream_;
    detail::BlockCode code_;
    at::TensorOptions options_;
    std::int64_t count_;
  };

  static std::int64_t checked(std::int64_t bits) {
    if (bits != 8 && bits != 4)
      throw OptionError(fmt::format("quantized(..., {}): it has 8 or 4 bits.", bits));
    return bits;
  }

  std::int64_t bits_;
  detail::BlockCode code_;
};

static_assert(StorageTier<Quantized>, "a quantized tier is a storage tier");

[[nodiscard]] inline Quantized quantized(AnyTier upstream, std::int64_t bits) {
  return {std::move(upstream), bits};
}

}  // namespace refrain::tier
