// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/backend_tap.hpp>
#include <refrain/detail/operator_names.hpp>
#include <refrain/detail/operator_traits.hpp>
#include <refrain/detail/pointer_map.hpp>
#include <refrain/error.hpp>
#include <refrain/policy/ops.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::detail {

/// An operator policy, with its names looked up: which rules each operator falls under.
class KeptOperators {
 public:
  struct Operator {
    c10::OperatorHandle handle;
    bool draws = false;              ///< From a random generator.
    std::vector<std::size_t> rules;  ///< Of the policy.
  };

  /// Throws `OptionError` for what cannot be kept.
  explicit KeptOperators(policy::OpPolicy policy) : policy_(std::move(policy)) {
    for (std::size_t rule = 0; rule < policy_.rules().size(); ++rule) {
      if (policy_.rules()[rule].kind == policy::OpPolicy::Rule::Ops::Random) {
        add_random(rule);
      } else {
        for (const std::string& name : policy_.rules()[rule].names) add(full(name), rule);
      }
    }
    if (!operators_.empty()) watch_uses_of_results();
  }

  [[nodiscard]] const policy::OpPolicy& policy() const { return policy_; }
  [[nodiscard]] const std::vector<Operator>& operators() const { return operators_; }

  /// Null if no rule speaks of it.
  [[nodiscard]] const Operator* find(const c10::OperatorHandle& op) const {
    const std::int64_t place = places_.find(&op.schema());
    return place == PointerMap::kAbsent ? nullptr : &operators_[static_cast<std::size_t>(place)];
  }

  /// Whether its result lies in its argument's memory and does not count changes with it.
  [[nodiscard]] bool is_unsafe_view(const c10::OperatorHandle& op) const {
    return unsafe_views_.find(&op.schema()) != PointerMap::kAbsent;
  }

  /// Whether it changes its first argument in place and saves of it what it made, if anything:
  /// after a kept call it may count as a part of it.
  [[nodiscard]] bool may_be_folded(const c10::OperatorHandle& op) const {
    return folded_.find(&op.schema()) != PointerMap::kAbsent;
  }

  /// Whether this call is kept, by any rule.
  [[nodiscard]] bool chooses(const Operator& op, const OpCall& call) const {
    return !asks(op) || std::any_of(op.rules.begin(), op.rules.end(), [&](std::size_t i) {
      return policy_.rules()[i].chooses(call);
    });
  }
  /// Whether that depends on the call: every rule has a condition.
  [[nodiscard]] bool asks(const Operator& op) const {
    return std::all_of(op.rules.begin(), op.rules.end(), [&](std::size_t i) {
      return static_cast<bool>(policy_.rules()[i].chooses);
    });
  }

 private:
  static std::string full(const std::string& name) {
    return name.find("::") == std::string::npos ? "aten::" + name : name;
  }

  /// What operators are made of that never reach a backend under their own name.
  static std::vector<std::string> parts_of(std::string_view name) {
    using Parts = std::vector<std::string>;
    static const std::vector<std::pair<Parts, Parts>> table = {
        {{"linear"}, {"mm", "addmm", "_addmm_activation", "mkldnn_linear"}},
        {{"matmul", "einsum", "bilinear", "tensordot", "chain_matmul", "linalg_multi_dot"},
         {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"}},
        {{"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"},
         {"convolution"}},
        {{"scaled_dot_product_attention"}, policy::keep_attention().rules()[0].names},
        {{"softmax"}, {"_softmax"}},
        {{"log_softmax"}, {"_log_softmax"}},
        {{"layer_norm"}, {"native_layer_norm"}},
        {{"group_norm"}, {"native_group_norm"}}};
    constexpr std::string_view kSpace = "aten::";
    for (const auto& [composites, parts] : table) {
      for (const std::string& composite : composites) {
        if (name.starts_with(kSpace) && name.substr(kSpace.size()) == composite) return parts;
      }
    }
    return {};
  }

  void add(const std::string& name, std::size_t rule) {
    const std::vector<std::string> parts = parts_of(name);
    for (const std::string& part : parts) {
      for (const auto& op : OperatorNames::find(full(part))) {
        if (why_not(op).empty()) put(op, rule);
      }
    }
    if (!parts.empty()) return;
    const OperatorNames::Handles overloads = OperatorNames::find(name);
    std::string reason;
    bool any = false;
    for (const auto& op : overloads) {
      std::string why = why_not(op);
      if (why.empty()) {
        put(op, rule);
        any = true;
      } else if (reason.empty() || op.schema().overload_name().empty()) {
        reason = std::move(why);
      }
    }
    if (any || policy_.rules()[rule].where_present) return;
    if (overloads.empty()) fail_unknown(name);
    throw OptionError(fmt::format("cannot keep the results of `{}`: it {}.", name, reason),
                      "keep an operator that returns new tensors, or use refrain::keep(name, ...) "
                      "for a piece of code.");
  }

  [[noreturn]] static void fail_unknown(const std::string& name) {
    const auto near = OperatorNames::near(name);
    throw OptionError(
        fmt::format("cannot keep the results of `{}`: there is no such operator.", name),
        near.empty() ? std::string() : fmt::format("near names: {}", policy::detail::listed(near)),
        "operators have the names of LibTorch's schemas, as \"aten::addmm\".");
  }

  /// Why an operator's results cannot be kept; empty if they can.
  static std::string why_not(const c10::OperatorHandle& op) {
    const c10::FunctionSchema& schema = op.schema();
    const OperatorTraits traits(op);
    if (traits.writes) return "writes into its arguments";
    if (traits.statistics >= 0) return "writes running statistics";
    const auto& returns = schema.returns();
    const bool gives_views =
        std::any_of(returns.begin(), returns.end(),
                    [](const c10::Argument& argument) { return argument.alias_info() != nullptr; });
    const bool unsafely = schema.name() == "aten::_unsafe_view" ||
                          schema.name().starts_with("aten::unsafe_");  // untold by their schemas
    if (gives_views || unsafely) return "returns a view of its arguments";
    const bool gives_tensors =
        std::any_of(returns.begin(), returns.end(),
                    [](const c10::Argument& argument) { return is_tensor(argument); });
    if (!gives_tensors) return "returns no tensor";
    return why_unseen(op);
  }

  static std::string why_unseen(const c10::OperatorHandle& op) {
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
      return "is made of other operators, which must be named instead";
    const auto& arguments = op.schema().arguments();
    const bool takes_tensors =
        std::any_of(arguments.begin(), arguments.end(),
                    [](const c10::Argument& argument) { return is_tensor(argument); });
    if (!takes_tensors) return "takes no tensor";
    if (!BackendTap::can_install(op)) return "chooses its backend itself";
    return {};
  }

  static bool is_tensor(const c10::Argument& argument) {
    const auto kind_is_tensor = [](const c10::Type& type) {
      return type.kind() == c10::TypeKind::TensorType;
    };
    const c10::Type* type = argument.type().get();
    if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType)
      type = type->containedTypes().at(0).get();
    return kind_is_tensor(*type);
  }

  /// Operators that write what they drew into an argument are kept too, as what they wrote.
  void add_random(std::size_t rule) {
    for (const auto& op : OperatorNames::tagged(at::Tag::nondeterministic_seeded)) {
      if (why_unseen(op).empty()) put(op, rule);
    }
  }

  /// `matmul` ends with an unsafe view, and `torch::nn::Linear` then adds its bias in place.
  void watch_uses_of_results() {
    watch({"_unsafe_view", "unsafe_split.Tensor", "unsafe_split_with_sizes"}, unsafe_views_);
    watch({"add_.Tensor", "relu_", "sigmoid_", "tanh_"}, folded_);
  }

  static void watch(std::initializer_list<const char*> names, PointerMap& set) {
    for (const char* const name : names) {
      for (const auto& op : OperatorNames::find(full(name))) {
        if (!why_unseen(op).empty()) continue;
        set.set(&op.schema(), 1);
        BackendTap::install(op);
      }
    }
  }

  void put(const c10::OperatorHandle& op, std::size_t rule) {
    const void* const schema = &op.schema();
    std::int64_t place = places_.find(schema);
    if (place == PointerMap::kAbsent) {
      place = static_cast<std::int64_t>(operators_.size());
      places_.set(schema, place);
      operators_.push_back({op, op.hasTag(at::Tag::nondeterministic_seeded), {}});
      BackendTap::install(op);
    }
    std::vector<std::size_t>& rules = operators_[static_cast<std::size_t>(place)].rules;
    if (rules.empty() || rules.back() != rule) rules.push_back(rule);
  }

  policy::OpPolicy policy_;
  std::vector<Operator> operators_;
  PointerMap places_;
  PointerMap unsafe_views_;
  PointerMap folded_;
};

}  // namespace refrain::detail
