// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/op_tap.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace refrain::detail {

/// The operators that a run called at its top level, in order.
class OpLog final : public OpObserver {
 public:
  void before(const OperatorHandle& op, const OperatorStack& /*stack*/) override { add(op, 0); }
  void after(const OperatorStack& /*stack*/) override {}

  /// `moment`: as `Births` counts.
  void add(const OperatorHandle& op, std::int64_t moment) {
    calls_.push_back({op.schema().name(), moment});
  }

  [[nodiscard]] std::size_t size() const { return calls_.size(); }
  void clear() { calls_.clear(); }

  /// Which call made what was born at `moment`, counted from 1; 0 if none did.
  [[nodiscard]] std::size_t place_of(std::int64_t moment) const {
    const auto call = std::find_if(calls_.rbegin(), calls_.rend(),
                                   [&](const Call& known) { return known.moment == moment; });
    return static_cast<std::size_t>(calls_.rend() - call);
  }
  /// Of the call at a place from 1.
  [[nodiscard]] const std::string& name(std::size_t place) const { return calls_[place - 1].name; }

  /// "…, aten::mm, aten::add, >aten::gelu<, aten::mul": the calls around a place from 1.
  [[nodiscard]] std::string around(std::size_t place) const {
    constexpr std::size_t kBefore = 3;
    constexpr std::size_t kAfter = 2;
    if (calls_.empty()) return "none";
    const std::size_t begin = place > kBefore ? place - 1 - kBefore : 0;
    const std::size_t end = std::min(calls_.size(), place + kAfter);
    std::string text = begin > 0 ? "…" : "";
    for (std::size_t i = begin; i < end; ++i) {
      if (!text.empty()) text += ", ";
      text += i + 1 == place ? ">" + calls_[i].name + "<" : calls_[i].name;
    }
    return end < calls_.size() ? text + ", …" : text;
  }

 private:
  struct Call {
    std::string name;
    std::int64_t moment;
  };
  std::vector<Call> calls_;
};

}  // namespace refrain::detail
