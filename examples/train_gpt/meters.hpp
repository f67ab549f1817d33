// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace train_gpt {

/// Counts the matrix products that run while it lives, on any thread; fused attention counts as
/// one.
class MatmulCounter {
 public:
  MatmulCounter()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&see).scopes({at::RecordScope::FUNCTION}))) {
    count() = 0;
  }
  MatmulCounter(const MatmulCounter&) = delete;
  MatmulCounter& operator=(const MatmulCounter&) = delete;
  ~MatmulCounter() { at::removeCallback(handle_); }

  std::int64_t so_far() const { return count(); }

 private:
  static std::atomic<std::int64_t>& count() {
    static std::atomic<std::int64_t> matmuls{0};
    return matmuls;
  }

  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& op) {
    constexpr std::array<std::string_view, 4> kMatmuls{"aten::mm", "aten::addmm", "aten::bmm",
                                                       "aten::baddbmm"};
    const std::string_view name = op.name();
    bool counts = name.starts_with("aten::_scaled_dot_product_");
    for (const auto matmul : kMatmuls) counts = counts || name == matmul;
    if (counts) ++count();
    return nullptr;
  }

  at::CallbackHandle handle_;
};

/// One number for the bits of all these tensors: it differs as soon as one bit does.
inline std::uint64_t fingerprint(const std::vector<at::Tensor>& tensors) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;
  std::uint64_t mixed = 0;
  const auto mix = [&mixed](std::uint64_t word) {
    mixed = (mixed ^ word) * kOdd;
    mixed ^= mixed >> 32U;
  };
  for (const auto& tensor : tensors) {
    mix(tensor.defined() ? static_cast<std::uint64_t>(tensor.nbytes()) : ~std::uint64_t{0});
    if (!tensor.defined()) continue;
    const auto here = tensor.to(at::kCPU).contiguous();
    const auto* const bytes = static_cast<const std::byte*>(here.const_data_ptr());
    for (std::size_t i = 0; i < here.nbytes(); i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i, std::min(sizeof word, here.nbytes() - i));
      mix(word);
    }
  }
  return mixed;
}

}  // namespace train_gpt
