// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/argument_tensors.hpp>
#include <refrain/detail/backend_tap.hpp>
#include <refrain/detail/footprint.hpp>
#include <refrain/detail/kept_call.hpp>
#include <refrain/detail/kept_operators.hpp>
#include <refrain/detail/kept_results.hpp>
#include <refrain/detail/operator_traits.hpp>
#include <refrain/detail/other_path.hpp>
#include <refrain/detail/pointer_map.hpp>
#include <refrain/detail/random_state.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/options.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/graph_task.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::detail {

/// One run of a region, as far as results are kept: a first run puts them in, a replay takes them
/// out. While it lives it is the innermost of its thread.
///
/// Regions nest. A result made in an inner region is kept by every region around it that runs for
/// the first time, up to one that replays: that one has it from its own first run.
class KeepScope final : public BackendCalls, public WriteListener {
 public:
  /// `footprint`: of a first run.
  KeepScope(KeptResults& results, Footprint* footprint, const std::string& region,
            const CheckpointOptions& options)
      : results_(results),
        footprint_(footprint),
        region_(region),
        options_(options),
        parent_(std::exchange(innermost_, this)),
        tap_(operators_of(this)) {
    if (footprint_ != nullptr) footprint_->tell_writes(this);
  }
  ~KeepScope() {
    innermost_ = parent_;
    if (footprint_ != nullptr) footprint_->tell_writes(nullptr);
  }
  KeepScope(const KeepScope&) = delete;
  KeepScope& operator=(const KeepScope&) = delete;

  /// The innermost run on this thread, or null.
  [[nodiscard]] static KeepScope* innermost() { return innermost_; }

  /// While it lives these runs keep nothing: what happens is a part of something that they keep as
  /// a whole. The operators of the thread go to whom they went before, unless that is one of them.
  class Pause {
   public:
    explicit Pause(c10::ArrayRef<KeepScope*> runs) : runs_(runs), tap_(paused(runs)) {}
    ~Pause() {
      for (KeepScope* const run : runs_) run->paused_ = false;
    }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    static BackendCalls* paused(c10::ArrayRef<KeepScope*> runs) {
      for (KeepScope* const run : runs) run->paused_ = true;
      return operators_of(innermost_);
    }

    c10::ArrayRef<KeepScope*> runs_;
    BackendTap::Scope tap_;
  };

  [[nodiscard]] bool is_paused() const { return paused_; }
  [[nodiscard]] KeptResults& results() { return results_; }
  [[nodiscard]] const CheckpointOptions& options() const { return options_; }
  [[nodiscard]] const std::string& region() const { return region_; }
  [[nodiscard]] bool replays() const { return footprint_ == nullptr; }
  [[nodiscard]] const Footprint* footprint() const { return footprint_; }
  /// The run around this one whose results are this one's too.
  [[nodiscard]] KeepScope* outer() const { return replays() ? nullptr : parent_; }
  /// Of a replay: the next of the values that were kept by name.
  [[nodiscard]] std::size_t next_value() { return next_value_++; }

  /// What was kept there is not what the run goes on with, whether a version counts it or not.
  void written(const void* storage) override {
    for (KeptCall& call : results_.calls) {
      if (call.kept && lies_in(call, storage)) call.written_at = footprint_->moment() + 1;
    }
    for (const auto& value : results_.values) {
      for (const KeptValue::Tensor& tensor : value->tensors) {
        value->written =
            value->written || (tensor.memory.defined() && tensor.memory.has_storage() &&
                               storage_of(tensor.memory) == storage);
      }
    }
  }

  /// Of a replay: the body may have caught what was thrown at it.
  void rethrow_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  /// Throws what `fail` throws, and again when the replay ends.
  template <class Fail>
  [[noreturn]] void fail_for_good(const Fail& fail) {
    try {
      fail();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
    std::terminate();  // it throws
  }

  void call(const OperatorHandle& op, c10::DispatchKeySet below, OperatorStack& stack) override {
    const KeptOperators& chosen = *options_.kept_operators();
    const KeptOperators::Operator* const known = chosen.find(op);
    if (inside_a_backward_pass()) return BackendTap::run(op, below, stack);
    if (known == nullptr) {
      if (chosen.may_be_folded(op) && folds(op, stack)) {
        torch::jit::drop(stack, OperatorTraits::of(op).arguments - 1);  // gives back its first
        return;
      }
      BackendTap::run(op, below, stack);
      if (!replays() && chosen.is_unsafe_view(op)) note_view(stack.back());
      return;
    }
    reused_ = false;
    const OperatorTraits& traits = OperatorTraits::of(op);
    const c10::IValue* const arguments = stack.data() + (stack.size() - traits.arguments);
    const std::uint64_t shapes = shapes_of(arguments, traits.arguments);
    if (!replays()) return record(*known, shapes, below, stack);
    if (next_call_ < results_.calls.size()) {
      KeptCall& kept = results_.calls[next_call_++];
      require_same(kept, op, shapes);
      reused_ = kept.usable();
      if (reused_) return reuse_result(kept, op, stack);
    }
    run(op, below, stack);
  }

 private:
  /// One that the body runs: it may take another way in the replay, where its graph ends elsewhere.
  [[nodiscard]] bool inside_a_backward_pass() const {
    return torch::autograd::get_current_graph_task_id() != task_;
  }

  /// A change in place that directly follows a kept call, of its result: nobody has read what it
  /// was before, so what is kept is what it is now. True in a replay that has that: nothing is to
  /// do.
  bool folds(const OperatorHandle& op, const OperatorStack& stack) {
    const OperatorTraits& traits = OperatorTraits::of(op);
    const c10::IValue* const arguments = stack.data() + (stack.size() - traits.arguments);
    std::vector<KeptCall>& calls = results_.calls;
    if (replays()) {
      if (next_call_ >= calls.size() || !calls[next_call_].folded) return false;
      require_same(calls[next_call_++], op, shapes_of(arguments, traits.arguments));
      return reused_;
    }
    if (calls.empty() || footprint_->moment() != last_touch_ + 1) return false;
    const auto base = std::find_if(calls.rbegin(), calls.rend(),
                                   [](const KeptCall& call) { return !call.folded; });
    if (base == calls.rend() || !base->kept) return false;
    const bool adds = traits.arguments > 1;
    if (adds && arguments[1].toTensor().dim() > 1) return false;  // no bias
    const c10::TensorImpl* const changed = arguments[0].toTensor().unsafeGetTensorImpl();
    bool is_its = false;
    for (KeptCall::Version& version : base->versions) {
      if (version.tensor._unsafe_get_target() != changed || version.mark.moved()) continue;
      version.mark.expect_change();
      is_its = true;
    }
    if (!is_its) return false;
    if (base->written_at == footprint_->moment()) base->written_at = 0;  // by this very operator
    last_touch_ = footprint_->moment();
    KeptCall& fold = calls.emplace_back();
    fold.schema = &op.schema();
    fold.shapes = shapes_of(arguments, traits.arguments);
    fold.folded = true;
    return false;
  }

  /// Regions that the operator calls are a part of it.
  void run(const OperatorHandle& op, c10::DispatchKeySet below, OperatorStack& stack) {
    KeepScope* const self = this;
    const Pause inside_it(self);
    BackendTap::run(op, below, stack);
  }

  static BackendCalls* operators_of(KeepScope* scope) {
    for (; scope != nullptr; scope = scope->outer()) {
      const KeptOperators* const chosen = scope->options_.kept_operators();
      if (chosen != nullptr && !chosen->operators().empty() && !scope->paused_) return scope;
    }
    return nullptr;
  }

  void require_same(const KeptCall& kept, const OperatorHandle& op, std::uint64_t shapes) {
    if (options_.check() == Check::None) return;
    if (kept.schema == &op.schema() && kept.shapes == shapes) return;
    fail_for_good([&] {
      fail_other_path(
          fmt::format("replay of `{}` calls other operators than the first run did.", region_),
          fmt::format("first difference at call {} of those that are kept: expected {}, got {}{}",
                      next_call_ - 1, kept.schema->name(), op.schema().name(),
                      kept.schema == &op.schema() ? " of other shapes" : ""));
    });
  }

  void record(const KeptOperators::Operator& known, std::uint64_t shapes, c10::DispatchKeySet below,
              OperatorStack& stack) {
    const OperatorHandle& op = known.handle;
    const OperatorTraits& traits = OperatorTraits::of(op);
    // There first: the call may throw, and the body go on without it.
    results_.calls.emplace_back();
    results_.calls.back().schema = &op.schema();
    results_.calls.back().shapes = shapes;
    const KeptOperators& chosen = *options_.kept_operators();
    OpCall call{op.schema().name(), 0, {}, 0};
    const c10::IValue* const arguments = stack.data() + (stack.size() - traits.arguments);
    if (chosen.asks(known)) {
      call.ordinal = std::max<std::int64_t>(calls_.find(&op.schema()), 0);
      calls_.set(&op.schema(), call.ordinal + 1);
      for (std::size_t i = 0; i < traits.arguments; ++i) {
        for_each_tensor(arguments[i], [&call](const at::Tensor& tensor) {
          call.inputs.push_back(tensor.is_nested() ? std::vector<std::int64_t>()
                                                   : tensor.sizes().vec());
        });
      }
    }
    const std::vector<at::Tensor> written = written_of(op, arguments, traits);
    std::optional<RandomState> generator;
    if (known.draws && options_.rng() == Rng::Preserve) {
      const at::Generator used = generator_of(arguments, traits.arguments);
      if (used.defined()) generator.emplace(used);
    }
    run(op, below, stack);
    KeptCall& kept = results_.calls.back();
    const c10::IValue* const returns = stack.data() + (stack.size() - traits.returns);
    for (std::size_t i = 0; i < traits.returns; ++i) {
      for_each_tensor(returns[i],
                      [&](const at::Tensor& tensor) { call.bytes += bytes_of(tensor); });
    }
    if (chosen.chooses(known, call) && counts_changes(returns, traits.returns)) {
      keep_result(kept, op, returns, written);
      if (generator && generator->moved()) kept.after.push_back(generator->again());
    }
    last_touch_ = footprint_->ran_alone(op.schema()) ? footprint_->moment() : kNever;
  }

  /// Of a kept result, perhaps: a change through it counts as one of the result.
  void note_view(const c10::IValue& views) {
    for_each_tensor(views, [this](const at::Tensor& view) {
      for (KeptCall& call : results_.calls) {
        if (call.kept && view.has_storage() && lies_in(call, storage_of(view)))
          call.versions.emplace_back(view);
      }
    });
  }

  static inline constinit thread_local KeepScope* innermost_ = nullptr;

  KeptResults& results_;
  Footprint* footprint_;
  const std::string& region_;
  const CheckpointOptions& options_;
  KeepScope* parent_;
  int task_ = torch::autograd::get_current_graph_task_id();
  bool paused_ = false;
  std::exception_ptr failure_;
  BackendTap::Scope tap_;
  static constexpr std::int64_t kNever = -2;
  /// The moment of the last call that was kept or folded, if nobody can have read its result then.
  std::int64_t last_touch_ = kNever;
  bool reused_ = false;  ///< The last call of a chosen operator was.
  std::size_t next_call_ = 0;
  std::size_t next_value_ = 0;
  PointerMap calls_;  ///< How often each operator was called, where somebody asks.
};

}  // namespace refrain::detail
