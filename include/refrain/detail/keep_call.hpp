// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/backend_tap.hpp>
#include <refrain/detail/footprint.hpp>
#include <refrain/detail/held_value.hpp>
#include <refrain/detail/keep_scope.hpp>
#include <refrain/detail/kept_node.hpp>
#include <refrain/detail/kept_results.hpp>
#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/other_path.hpp>
#include <refrain/detail/outside_tensors.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/surroundings.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/error.hpp>
#include <refrain/options.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain::detail {

/// One call of `keep` or `once`: from which replay it is answered, or which first runs it is for.
class KeepCall {
 public:
  enum class Kind { Named, Always };

  KeepCall(std::string_view name, Kind kind) : name_(name) {
    OpTap::stop_if_asked();
    const auto wanted = [&](const KeepScope& scope) {
      const KeptOperators* const chosen = scope.options().kept_operators();
      return kind == Kind::Always || chosen == nullptr || chosen->policy().keeps_name(name);
    };
    for (KeepScope* scope = KeepScope::innermost(); scope != nullptr; scope = scope->outer()) {
      const bool here = wanted(*scope) && !scope->is_paused();
      if (here && scope->replays()) answer(*scope);
      if (here && !scope->replays()) firsts_.push_back(scope);
    }
    if (answering_ != nullptr && !answer_) firsts_.clear();  // the code threw then: it runs again
    if (!answer_) return;
    for (KeepScope* const scope : firsts_) scope->results().values.push_back(answer_);
  }

  /// What a first run kept; null if the code must run.
  [[nodiscard]] const KeptValue* answer() const { return answer_.get(); }

  /// The kept value, as the replay's own: its tensors begin graphs of their own.
  template <class Result>
  [[nodiscard]] Result reuse() const {
    repeat_effects();
    HeldValue copy = answer_->value;
    Result* const value = copy.as<Result>();
    if (value == nullptr) fail_other_call(*answering_, "of another type");
    std::size_t place = 0;
    for_each_tensor_in(*value, [&](at::Tensor& tensor) {
      const KeptValue::Tensor& then = answer_->tensors[place++];
      if (then.moved) tensor = then.moved->get();
      if (!tensor.defined()) return;
      tensor = tensor.variable_data();
      if (then.tracked) KeptNode::put_under(tensor, answer_->name);
    });
    return std::move(*value);
  }

  /// What the code did outside itself.
  void repeat_effects() const {
    const CheckpointOptions& options = answering_->options();
    for (RandomState state : answer_->after) {
      if (puts_back(options, state)) state.restore();
    }
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    for (const KeptValue::Write& write : answer_->writes) write.live.copy_(write.after);
  }

  /// Runs the code as a first run does: what autograd saves in it stays, since no replay brings it
  /// back.
  void run(c10::function_ref<void()> code) {
    if (firsts_.empty()) return code();
    std::vector<at::Generator> named;
    for (const KeepScope* const scope : firsts_) {
      const auto& own = scope->options().generators();
      named.insert(named.end(), own.begin(), own.end());
    }
    before_.emplace(/*enabled=*/true, named);
    static const std::vector<at::Tensor> no_inputs;
    const std::string label = fmt::format("keep(\"{}\")", name_);
    Footprint footprint(label, no_inputs);
    {
      const Footprint::Scope watched(&footprint);
      const bool innermost = firsts_.front() == KeepScope::innermost();
      const HookScope plainly(innermost ? nullptr : current_hook_maker);
      const KeepScope::Pause kept_as_a_whole(firsts_);
      try {
        code();
      } catch (...) {
        const auto thrown = std::make_shared<KeptValue>();
        thrown->name = name_;
        thrown->threw = true;
        for (KeepScope* const scope : firsts_) scope->results().values.push_back(thrown);
        throw;
      }
    }
    writes_ = footprint.writes();
    drew_on_ = footprint.work().drew_on;
    refuse_own_writes();
  }

  template <class Result>
  void take(const Result& result) {
    if (firsts_.empty()) return;
    const auto kept = std::make_shared<KeptValue>();
    Result value = result;
    for_each_tensor_in(value, [&](at::Tensor& tensor) {
      if (!tensor.defined()) {
        kept->tensors.emplace_back();
        return;
      }
      refuse_lost_gradient(tensor);
      // What lies outside a region may move for reasons of its own, once the run is over.
      const bool own = !tensor.is_inference() && tensor.has_storage() && is_own(tensor);
      kept->tensors.push_back({own ? VersionMark(tensor) : VersionMark(), tensor.requires_grad(),
                               tensor.variable_data(), std::nullopt});
      const at::NoGradGuard no_grad;
      const Unseen unseen;
      tensor = own ? tensor.variable_data() : tensor.detach().clone().variable_data();
    });
    kept->value = HeldValue(std::move(value));
    put(kept);
  }

  void take_nothing() {
    if (!firsts_.empty()) put(std::make_shared<KeptValue>());
  }

 private:
  void put(const std::shared_ptr<KeptValue>& kept) {
    kept->name = name_;
    for (const RandomState& state : before_->drawn_from(drew_on_))
      kept->after.push_back(state.again());
    const at::NoGradGuard no_grad;
    for (const OutsideWrite& write : writes_)
      kept->writes.push_back({write.live, write.live.clone()});
    for (KeepScope* const scope : firsts_) scope->results().values.push_back(kept);
  }

  void answer(KeepScope& scope) {
    const std::size_t place = scope.next_value();
    const auto& values = scope.results().values;
    if (place >= values.size()) fail_other_call(scope, "not at all");
    answer_ = values[place];
    if (answer_->name != name_) fail_other_call(scope, fmt::format("`{}`", answer_->name));
    answering_ = &scope;
    if (answer_->threw) return answer_.reset();
    for (const KeptValue::Tensor& tensor : answer_->tensors) {
      if (tensor.version.moved() || answer_->written) fail_changed(scope, tensor.version);
    }
  }

  [[nodiscard]] bool is_own(const at::Tensor& tensor) const {
    return std::all_of(firsts_.begin(), firsts_.end(),
                       [&](const KeepScope* scope) { return scope->footprint()->is_own(tensor); });
  }

  /// Whether a replay with these options puts the generator back when it is over.
  static bool puts_back(const CheckpointOptions& options, const RandomState& state) {
    if (options.rng() == Rng::Ignore) return false;
    if (state.is_default()) return true;
    const auto& named = options.generators();
    return std::any_of(named.begin(), named.end(), [&](const at::Generator& generator) {
      return generator.unsafeGetGeneratorImpl() == state.generator();
    });
  }

  /// What is done here is no part of the run.
  struct Unseen {
    c10::impl::ExcludeDispatchKeyGuard untapped{OpTap::key()};
    BackendTap::Scope unkept{nullptr};
  };

  [[noreturn]] void fail_other_call(KeepScope& scope, const std::string& then) const {
    scope.fail_for_good([&] {
      fail_other_path(
          fmt::format("replay of `{}` keeps other values than the first run did.", scope.region()),
          fmt::format("first difference: keep(\"{}\"), then {}", name_, then));
    });
  }

  [[noreturn]] void fail_changed(KeepScope& scope, const VersionMark& version) const {
    scope.fail_for_good([&] {
      throw DivergenceError(
          fmt::format("cannot replay `{}`: what keep(\"{}\") gave was changed in place.",
                      scope.region(), name_),
          fmt::format("version {} then, {} now", version.then(), version.now()),
          "likely cause: an in-place operation on the kept value, in the region or after it.",
          "write into a clone.");
    });
  }

  /// A replay makes such a tensor anew, and does not change it.
  void refuse_own_writes() const {
    for (const KeepScope* const scope : firsts_) {
      for (const OutsideWrite& write : writes_) {
        if (!scope->footprint()->is_own(write.live)) continue;
        throw Error(fmt::format("the code of keep(\"{}\") in `{}` changes in place a tensor of the "
                                "region, {}.",
                                name_, scope->region(), to_string(TensorFacts(write.live))),
                    "a replay would not change it, since it does not run the code.",
                    "return what is new instead.");
      }
    }
  }

  /// A graph node that replays would have to find its way through the code's own graph.
  void refuse_lost_gradient(const at::Tensor& tensor) const {
    if (!tensor.requires_grad()) return;
    for (const KeepScope* const scope : firsts_) {
      if (scope->options().route() != Route::Function) continue;
      throw Error(fmt::format("keep(\"{}\") in `{}` gives a value that needs a gradient, which "
                              "Route::Function cannot serve.",
                              name_, scope->region()),
                  "detach it, or use Route::Hooks.");
    }
  }

  std::string name_;
  std::vector<KeepScope*> firsts_;
  std::shared_ptr<KeptValue> answer_;
  KeepScope* answering_ = nullptr;
  // Of the code, once it ran:
  std::optional<EntryRandomState> before_;
  std::vector<OutsideWrite> writes_;
  DrewOn drew_on_;
};

/// What `thunk` gives in the first run of the regions around it, in their replays too.
template <class Thunk>
auto keep_as(KeepCall::Kind kind, std::string_view name, Thunk& thunk) {
  using Result = std::decay_t<std::invoke_result_t<Thunk&>>;
  KeepCall call(name, kind);
  if (call.answer() != nullptr) return call.reuse<Result>();
  std::optional<Result> result;
  call.run([&] { result.emplace(thunk()); });
  call.take(*result);
  return *std::move(result);
}

/// `keep`, whatever names a region's options choose.
template <class Thunk>
auto keep_always(std::string_view name, Thunk&& thunk) {
  return keep_as(KeepCall::Kind::Always, name, thunk);
}

}  // namespace refrain::detail
