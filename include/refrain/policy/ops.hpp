// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain {

/// One call of an operator inside a region, as an operator policy sees it, once its result is
/// there.
struct OpCall {
  std::string_view op;       ///< "aten::addmm"
  std::int64_t ordinal = 0;  ///< How many calls of it came before in this run of the region.
  std::vector<std::vector<std::int64_t>> inputs;  ///< Sizes of its tensor arguments, in order.
  std::int64_t bytes = 0;                         ///< Of its results.
};

namespace policy {

/// Which operators of a region run once a step: their results are kept by the first run and handed
/// out in the replay, and the rest of the region runs again.
///
///     auto lean = refrain::checkpoint(Block(512), policy::keep_matmuls() +
///     policy::keep_attention());
///
/// Policies add up. Exact: what is kept is what the first run computed. A kept result that is
/// changed in place later is computed again. Memory: what is kept, until the region's backward is
/// over.
class OpPolicy {
 public:
  using Chooses = std::function<bool(const OpCall&)>;

  /// What one of the sums is made of.
  struct Rule {
    enum class Ops { Named, Random };
    Ops kind = Ops::Named;
    std::vector<std::string> names;  ///< Of operators; "aten::" may be left out.
    bool where_present = false;      ///< A name that this LibTorch does not have is passed over.
    Chooses chooses;                 ///< Empty: every call.
  };

  /// Keeps nothing.
  OpPolicy() = default;
  OpPolicy(std::string description, Rule rule) : description_(std::move(description)) {
    rules_.push_back(std::move(rule));
  }

  /// Of the calls that this policy keeps, only those that `chooses` accepts.
  ///
  ///     policy::keep_matmuls().where([](const OpCall& call) { return call.bytes < 1 << 20; })
  ///
  /// `chooses` must answer by the call alone: it is asked in the first run only.
  [[nodiscard]] OpPolicy where(const Chooses& chooses) const {
    OpPolicy narrowed = *this;
    narrowed.description_ += ".where(...)";
    for (Rule& rule : narrowed.rules_) {
      if (rule.chooses) {
        rule.chooses = [first = std::move(rule.chooses), chooses](const OpCall& call) {
          return first(call) && chooses(call);
        };
      } else {
        rule.chooses = chooses;
      }
    }
    return narrowed;
  }

  /// Both.
  friend OpPolicy operator+(OpPolicy a, const OpPolicy& b) {
    if (!a.description_.empty() && !b.description_.empty()) a.description_ += " + ";
    a.description_ += b.description_;
    a.rules_.insert(a.rules_.end(), b.rules_.begin(), b.rules_.end());
    a.names_.insert(a.names_.end(), b.names_.begin(), b.names_.end());
    a.chooses_names_ = a.chooses_names_ || b.chooses_names_;
    return a;
  }

  [[nodiscard]] const std::vector<Rule>& rules() const { return rules_; }
  [[nodiscard]] const std::string& describe() const { return description_; }

  /// Whether what `refrain::keep(name, ...)` marks is kept: all of it, unless there is a
  /// `keep_named`.
  [[nodiscard]] bool keeps_name(std::string_view name) const {
    if (!chooses_names_) return true;
    for (const std::string& known : names_) {
      if (known == name) return true;
    }
    return false;
  }

 private:
  friend OpPolicy keep_named(std::vector<std::string> names);

  std::string description_;
  std::vector<Rule> rules_;
  std::vector<std::string> names_;
  bool chooses_names_ = false;
};

namespace detail {

/// "a, b, c"
[[nodiscard]] inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

[[nodiscard]] inline OpPolicy ready_made(std::string description, std::vector<std::string> names) {
  return {std::move(description),
          {OpPolicy::Rule::Ops::Named, std::move(names), /*where_present=*/true, {}}};
}

}  // namespace detail

/// Keeps the results of these operators: "aten::addmm" or "addmm", all overloads that return new
/// tensors, or one of them, "aten::softmax.int". `linear`, `matmul`, `einsum`, convolutions and
/// `scaled_dot_product_attention` stand for the kernels that they are made of.
///
///     auto lean = refrain::checkpoint(Block(512), policy::keep_ops({"aten::addmm", "aten::bmm"}));
///
/// Where it is given to a region or to `CheckpointOptions::keep`, throws `OptionError` for a name
/// that no operator has, naming near ones, and for operators that write into their arguments, that
/// return views, or that are made of others.
[[nodiscard]] inline OpPolicy keep_ops(std::vector<std::string> names) {
  std::string description = fmt::format("keep_ops({})", detail::listed(names));
  return {std::move(description),
          {OpPolicy::Rule::Ops::Named, std::move(names), /*where_present=*/false, {}}};
}

/// Keeps what matrix products and convolutions give: most of a network's arithmetic, about half of
/// what it would remember. The operators of `linear`, `matmul`, `einsum` and convolutions.
[[nodiscard]] inline OpPolicy keep_matmuls() {
  return detail::ready_made(
      "keep_matmuls()",
      {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "_addmm_activation",
       "mkldnn_linear", "mkldnn_rnn_layer", "convolution", "_convolution", "_scaled_mm"});
}

/// Keeps what fused attention gives: the result and the sums that its backward needs.
[[nodiscard]] inline OpPolicy keep_attention() {
  return detail::ready_made(
      "keep_attention()",
      {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
       "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
       "_scaled_dot_product_fused_attention_overrideable", "_flash_attention_forward",
       "_efficient_attention_forward"});
}

/// Keeps what random operators drew, whatever they are: for masks that must not be drawn again. Not
/// needed for exactness where the replay can set the generators back, as it does by default.
[[nodiscard]] inline OpPolicy keep_random() {
  return {"keep_random()", {OpPolicy::Rule::Ops::Random, {}, /*where_present=*/true, {}}};
}

/// Of what `refrain::keep(name, ...)` marks in the region, keeps these names only; code of the
/// other names runs again in the replay.
[[nodiscard]] inline OpPolicy keep_named(std::vector<std::string> names) {
  OpPolicy policy;
  policy.description_ = fmt::format("keep_named({})", detail::listed(names));
  policy.names_ = std::move(names);
  policy.chooses_names_ = true;
  return policy;
}

/// What a transformer block's norms and activations cost is little and what they keep is much: all
/// else is kept. The same as `keep_matmuls() + keep_attention()`.
[[nodiscard]] inline OpPolicy replay_norms_and_activations() {
  return keep_matmuls() + keep_attention();
}

}  // namespace policy
}  // namespace refrain

template <>
struct fmt::formatter<refrain::policy::OpPolicy> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::policy::OpPolicy& policy, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(policy.describe(), context);
  }
};
