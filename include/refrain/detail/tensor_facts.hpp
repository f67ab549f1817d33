// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <fmt/format.h>

#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>

namespace refrain::detail {

/// Which tensor it is, short of its values: what two runs of one region must agree on.
struct TensorFacts {
  at::ScalarType dtype = at::ScalarType::Undefined;
  at::Device device = at::kCPU;
  c10::SmallVector<std::int64_t, 5> sizes;

  explicit TensorFacts(const at::Tensor& tensor)
      : dtype(tensor.scalar_type()), device(tensor.device()), sizes(sizes_of(tensor)) {}

  [[nodiscard]] bool describe(const at::Tensor& tensor) const {
    return tensor.scalar_type() == dtype && tensor.device() == device &&
           sizes_of(tensor) == at::IntArrayRef(sizes);
  }

 private:
  // A nested tensor has no sizes that could be told.
  static at::IntArrayRef sizes_of(const at::Tensor& tensor) {
    return tensor.is_nested() ? at::IntArrayRef() : tensor.sizes();
  }
};

/// What tells the memory of one tensor from another's: its storage, or the tensor itself where it
/// has none.
[[nodiscard]] inline const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl())
                              : tensor.unsafeGetTensorImpl();
}

/// Bytes of a dense tensor; 0 for sparse and other layouts, which do not tell.
[[nodiscard]] inline std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

/// "float32[8, 128, 64]"
[[nodiscard]] inline std::string shape_text(const TensorFacts& facts) {
  std::string dtype;
  switch (facts.dtype) {
    case at::kFloat:
      dtype = "float32";
      break;
    case at::kDouble:
      dtype = "float64";
      break;
    case at::kHalf:
      dtype = "float16";
      break;
    case at::kInt:
      dtype = "int32";
      break;
    case at::kLong:
      dtype = "int64";
      break;
    default:
      for (const char* c = c10::toString(facts.dtype); *c != '\0'; ++c) {
        dtype += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
      }
  }
  std::string sizes;
  for (const std::int64_t size : facts.sizes) {
    if (!sizes.empty()) sizes += ", ";
    sizes += std::to_string(size);
  }
  return fmt::format("{}[{}]", dtype, sizes);
}

/// "float32[8, 128, 64] on cpu"
[[nodiscard]] inline std::string to_string(const TensorFacts& facts) {
  return fmt::format("{} on {}", shape_text(facts), facts.device.str());
}

/// How often a tensor was changed in place; 0 for an inference tensor, which does not count.
[[nodiscard]] inline std::uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : 0;
}

/// Says whether a tensor was changed in place since, as autograd's own check does, and keeps no
/// memory alive.
class VersionMark {
 public:
  VersionMark() = default;
  explicit VersionMark(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()) {
    if (counter_.enabled()) at_ = counter_.current_version();
  }

  [[nodiscard]] bool moved() const {
    return counter_.enabled() && counter_.current_version() != at_;
  }
  [[nodiscard]] std::uint32_t then() const { return at_; }
  [[nodiscard]] std::uint32_t now() const {
    return counter_.enabled() ? counter_.current_version() : at_;
  }

  /// Makes a tensor count its changes where this one's were counted.
  void share_with(const at::Tensor& tensor) const {
    if (counter_.enabled()) tensor.unsafeGetTensorImpl()->set_version_counter(counter_);
  }

  /// Takes one more change as known, which is about to be counted.
  void expect_change() { ++at_; }

  /// Counts on from where nobody will get to: what is saved from now on looks changed after
  /// `rewind`.
  void leap() {
    if (counter_.enabled()) counter_.set_version(at_ + kLeap);
  }

  /// Takes back what was counted since: for contents that were put back as they were.
  void rewind() {
    if (counter_.enabled()) counter_.set_version(at_);
  }

 private:
  static constexpr std::uint32_t kLeap = 1U << 24;
  c10::VariableVersion counter_{c10::VariableVersion::DISABLED};
  std::uint32_t at_ = 0;
};

}  // namespace refrain::detail
