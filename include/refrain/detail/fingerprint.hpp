// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/tensor_facts.hpp>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace refrain::detail {

/// A number for each 4 KiB of a tensor's bytes, in the order of its elements: equal bits give equal
/// numbers, and other bits other ones but for one case in 2⁶⁴. The sum of all words, each times an
/// odd number of its place.
///
/// Time: one pass over the bytes, on the tensor's device; a copy first where rows of elements do
/// not lie together. Memory: a five-hundredth.
class Fingerprint {
 public:
  static constexpr std::int64_t kBlock = 4096;  ///< Bytes.

  /// Whether a tensor has bytes to look at.
  [[nodiscard]] static bool can_take(const at::Tensor& tensor) {
    return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
           !tensor.is_nested() && !tensor.is_meta() && !tensor._is_zerotensor();
  }

  explicit Fingerprint(const at::Tensor& of)
      : Fingerprint(of, of.dim() == 2 && of.stride(0) == 1 && of.stride(1) == of.size(0)) {}

  /// The first block whose bytes are others in `tensor`, if one's are.
  [[nodiscard]] std::optional<std::int64_t> first_difference(const at::Tensor& tensor) const {
    const Fingerprint now(tensor, turned_);
    if (on_device_.defined()) {
      const at::NoGradGuard no_grad;
      const at::Tensor differ = on_device_.ne(now.on_device_).nonzero();
      if (differ.numel() == 0) return std::nullopt;
      return differ[0].item<std::int64_t>();
    }
    const auto [mine, its] =
        std::mismatch(blocks_.begin(), blocks_.end(), now.blocks_.begin(), now.blocks_.end());
    if (mine == blocks_.end()) return std::nullopt;
    return mine - blocks_.begin();
  }

 private:
  /// `turned`: a matrix that lies column by column, as the weight of a linear layer in its product,
  /// is read so.
  Fingerprint(const at::Tensor& of, bool turned) : turned_(turned) {
    const at::NoGradGuard no_grad;
    at::Tensor tensor = turned ? of.detach().t() : of.detach();
    if (tensor.is_conj() || tensor.is_neg()) tensor = tensor.resolve_conj().resolve_neg();
    if (!tensor.is_cpu()) {
      on_device_ = on_device(tensor.contiguous());
      return;
    }
    blocks_.reserve(static_cast<std::size_t>(bytes_of(tensor) / kBlock + 1));
    const std::size_t row = bytes_of_row(tensor);
    if (row >= kLeastRow && row % sizeof(std::uint64_t) == 0) {
      add_rows(tensor, row);
    } else {
      tensor = tensor.contiguous();
      add(static_cast<const unsigned char*>(tensor.const_data_ptr()),
          static_cast<std::size_t>(tensor.nbytes()));
    }
    if (words_ > 0) end_block();
  }

  static constexpr std::size_t kLeastRow = 64;
  static constexpr std::size_t kLanes = 4;
  static constexpr std::size_t kWords = kBlock / sizeof(std::uint64_t);
  static constexpr std::uint64_t kFirst = 0x9E3779B97F4A7C15U;
  static constexpr std::uint64_t kStep = 0xD1B54A32D192ED02U;  // even: all multipliers are odd

  /// Of elements that lie together, one after the other.
  static std::size_t bytes_of_row(const at::Tensor& tensor) {
    std::int64_t elements = 1;
    for (std::int64_t i = tensor.dim(); i-- > 0;) {
      if (tensor.size(i) != 1 && tensor.stride(i) != elements) break;
      elements *= tensor.size(i);
    }
    return static_cast<std::size_t>(elements) * tensor.element_size();
  }

  void add_rows(const at::Tensor& tensor, std::size_t row) {
    const auto* const begin = static_cast<const unsigned char*>(tensor.const_data_ptr());
    const std::size_t width = tensor.element_size();
    const std::size_t rows = static_cast<std::size_t>(tensor.nbytes()) / row;
    std::int64_t outer = tensor.dim();  // the dimensions whose steps are between rows
    for (std::size_t elements = row / width; outer > 0 && elements > 1; --outer)
      elements /= static_cast<std::size_t>(tensor.size(outer - 1));
    std::vector<std::int64_t> index(static_cast<std::size_t>(outer), 0);
    std::int64_t place = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      add(begin + static_cast<std::ptrdiff_t>(place) * static_cast<std::ptrdiff_t>(width), row);
      for (std::int64_t d = outer; d-- > 0;) {
        std::int64_t& at = index[static_cast<std::size_t>(d)];
        place += tensor.stride(d);
        if (++at < tensor.size(d)) break;
        place -= tensor.stride(d) * at;
        at = 0;
      }
    }
  }

  /// Only the last bytes of all may be less than a word.
  void add(const unsigned char* bytes, std::size_t count) {
    while (count >= sizeof(std::uint64_t)) {
      const std::size_t words = std::min(count / sizeof(std::uint64_t), kWords - words_);
      add_words(bytes, words);
      bytes += words * sizeof(std::uint64_t);
      count -= words * sizeof(std::uint64_t);
      if (words_ == kWords) end_block();
    }
    if (count == 0) return;
    unsigned char rest[sizeof(std::uint64_t)] = {};
    std::memcpy(rest, bytes, count);
    add_words(rest, 1);
  }

  void add_words(const unsigned char* bytes, std::size_t words) {
    std::uint64_t sums[kLanes] = {};
    std::uint64_t factor = kFirst + words_ * kStep;
    std::size_t i = 0;
    for (; i + kLanes <= words; i += kLanes) {
      std::uint64_t word[kLanes];
      std::memcpy(word, bytes + i * sizeof(std::uint64_t), sizeof(word));
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        sums[lane] += word[lane] * (factor + lane * kStep);
      factor += kLanes * kStep;
    }
    for (; i < words; ++i, factor += kStep) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i * sizeof(std::uint64_t), sizeof(word));
      sums[0] += word * factor;
    }
    sum_ += sums[0] + sums[1] + sums[2] + sums[3];
    words_ += words;
  }

  void end_block() {
    blocks_.push_back(std::exchange(sum_, 0));
    words_ = 0;
  }

  static at::Tensor on_device(const at::Tensor& tensor) {
    at::Tensor bytes = tensor.view({-1}).view(at::kByte);
    const std::int64_t rest = bytes.numel() % kBlock;
    if (rest != 0) bytes = at::constant_pad_nd(bytes, {0, kBlock - rest});
    const at::Tensor factors =
        at::arange(static_cast<std::int64_t>(kWords), bytes.options().dtype(at::kLong)) *
            static_cast<std::int64_t>(kStep) +
        static_cast<std::int64_t>(kFirst);
    return (bytes.view(at::kLong).view({-1, static_cast<std::int64_t>(kWords)}) * factors).sum(1);
  }

  bool turned_ = false;
  std::vector<std::uint64_t> blocks_;
  std::uint64_t sum_ = 0;  ///< Of the block that is not full yet,
  std::size_t words_ = 0;  ///< and its words.
  at::Tensor on_device_;
};

}  // namespace refrain::detail
