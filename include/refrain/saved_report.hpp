// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {

/// One tensor that autograd saves for backward.
struct SavedTensor {
  /// What it is: made by the code itself, one of its arguments, a leaf that gets a gradient, or a
  /// tensor from elsewhere.
  enum class Kind { Activation, Input, Parameter, Captured };

  std::string op;    ///< The operator that saves it: "aten::linear".
  std::string what;  ///< "float32[8, 128]"
  Bytes bytes;       ///< Of its elements.
  Kind kind = Kind::Activation;
  std::string name;               ///< Of a parameter, where the code is a module: "up.weight".
  std::int64_t shared_with = -1;  ///< The first tensor in the list that lies in the same memory.
};

[[nodiscard]] inline std::string_view to_string(SavedTensor::Kind kind) {
  switch (kind) {
    case SavedTensor::Kind::Activation:
      return "activation";
    case SavedTensor::Kind::Input:
      return "input";
    case SavedTensor::Kind::Parameter:
      return "parameter";
    case SavedTensor::Kind::Captured:
      return "captured";
  }
  return "";
}

/// What autograd saves of one call, in the order in which it does. See `explain_saved`.
struct SavedReport {
  std::vector<SavedTensor> tensors;
  Bytes kept;  ///< The memory of activations, each once: what the call keeps alive by itself.
};

/// A table: a row a tensor, then what they keep.
[[nodiscard]] inline std::string to_string(const SavedReport& report) {
  constexpr const char* kRow = "{:>4}  {:<28}  {:<24}  {:>11}  {}\n";
  constexpr std::size_t kOp = 28;
  constexpr std::size_t kWhat = 24;
  std::string text = fmt::format(kRow, "", "saved by", "tensor", "bytes", "what");
  for (std::size_t i = 0; i < report.tensors.size(); ++i) {
    const SavedTensor& tensor = report.tensors[i];
    std::string kind(to_string(tensor.kind));
    if (!tensor.name.empty()) kind += " " + tensor.name;
    if (tensor.shared_with >= 0) kind += fmt::format(", in the memory of {}", tensor.shared_with);
    text += fmt::format(kRow, i, tensor.op.substr(0, kOp), tensor.what.substr(0, kWhat),
                        fmt::to_string(tensor.bytes), kind);
  }
  return text + fmt::format("activations keep {}", report.kept);
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::SavedReport> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::SavedReport& report, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(report), context);
  }
};
