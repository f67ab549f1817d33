// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/body.hpp>
#include <refrain/detail/call_record.hpp>
#include <refrain/detail/first_run.hpp>
#include <refrain/detail/footprint.hpp>
#include <refrain/detail/frozen_since.hpp>
#include <refrain/detail/keep_scope.hpp>
#include <refrain/detail/kept_results.hpp>
#include <refrain/detail/move_line.hpp>
#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/outside_graph.hpp>
#include <refrain/detail/outside_state.hpp>
#include <refrain/detail/region_inputs.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/surroundings.hpp>
#include <refrain/detail/turn.hpp>
#include <refrain/error.hpp>
#include <refrain/options.hpp>
#include <refrain/replay.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/FunctionRef.h>

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// What is the same for every call of one region. Shared by its frames.
struct RegionSettings {
  CheckpointOptions options;
  std::string name;                ///< What messages call it.
  mutable std::int64_t calls = 0;  ///< Counted where values are checked.

  /// Whether the call that begins is one whose values are checked.
  [[nodiscard]] bool checks_values() const {
    if (options.check() < Check::Values) return false;
    return std::atomic_ref(calls).fetch_add(1) % options.check_every() == 0;
  }
};

/// One call of a region: all that its replay needs, whichever way it goes into autograd.
///
/// Memory: the arguments, one copy of each buffer that the region writes, the random state if it
/// drew, and about 100 bytes for each tensor from outside that it reads.
class Frame {
 public:
  Frame(std::shared_ptr<const RegionSettings> settings, std::unique_ptr<Body> body,
        const std::vector<at::Tensor>& inputs)
      : settings_(std::move(settings)),
        body_(std::move(body)),
        inputs_(inputs, settings_->options.tier(), settings_->name),
        record_(CallRecord::open(settings_->name, inputs)) {}

  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  [[nodiscard]] const std::string& name() const { return settings_->name; }
  [[nodiscard]] const CheckpointOptions& options() const { return settings_->options; }

  /// Runs `call` while watching what it touches. `inside`: where regions that it calls say that
  /// they are.
  void first_run(Footprint& footprint, HookMaker* hooks, const CallRecord::Place* inside,
                 c10::function_ref<void()> call) {
    const CallRecord::PlaceScope recorded(inside);
    // Before anything moves: it may refuse the call.
    const EntryRandomState random = unless_capturing("run", name(), [this] {
      return EntryRandomState(options().rng() == Rng::Preserve, options().generators());
    });
    if (options().tier()) MoveLine::current()->move_what_waits();
    if (record_ != nullptr) record_->first_run_begins(options().generators());
    running_ = &footprint;
    running_random_ = &random;
    try {
      {
        const Footprint::Scope watched(&footprint);
        for (const at::Tensor& tensor : options().state()) footprint.declare_written(tensor);
        const HookScope hooked(hooks);
        const KeepScope keeping(kept_, &footprint, name(), options());
        call();
      }
      footprint.refuse_changed_arguments_held_elsewhere();
    } catch (...) {
      finish(footprint);  // an input changed in place would otherwise hold its own graph
      first_run_threw_ = true;
      throw;
    }
    finish(footprint);
  }

  /// Puts the first run's surroundings back and runs the body once more; `hooks` see what it saves,
  /// `observer` its operators, if it is not null.
  void replay(HookMaker* hooks, std::vector<at::Tensor>* outputs, OpObserver* observer) {
    replay(hooks, outputs, observer, /*inside=*/nullptr, [] {});
  }

  /// The same, then calls `then` while buffers still hold what they did in the first run, but in
  /// the caller's own surroundings.
  void replay(HookMaker* hooks, std::vector<at::Tensor>* outputs, OpObserver* observer,
              const CallRecord::Place* inside, c10::function_ref<void()> then) {
    CallRecord::Replay recorded(record_.get());
    const HookScope unhooked(nullptr);
    const Footprint::Scope unwatched(nullptr);
    if (running_ != nullptr) take_so_far(*running_);
    if (options().check() != Check::None) check_unchanged();
    // Before anything is exchanged: it may replay the region around this one.
    const std::vector<at::Tensor> inputs = inputs_.tensors();
    const FrozenSince frozen(reads_, inputs_, inputs);
    std::vector<const void*> exchanged = storages_of(writes_);
    frozen.add_to(exchanged);
    const Turn turn(Turn::At::Buffers, exchanged);
    const OutsideStateScope outside(writes_, /*graph_lives_on=*/at::GradMode::is_enabled());
    {
      const FrozenSince::Scope as_frozen_then(frozen);
      OutsideGraphScope outside_graph;
      for (const at::Tensor& input : inputs) outside_graph.guard(input);
      for_each_read([&](const at::Tensor& tensor) { outside_graph.guard(tensor); });
      const ReplayMark replaying;
      const HooksEnabledScope hooks_enabled;
      const Surroundings::Scope surroundings =
          unless_capturing("replay", name(), [this] { return Surroundings::Scope(surroundings_); });
      const HookScope hooked(hooks);
      const KeepScope keeping(kept_, nullptr, name(), options());
      const CallRecord::PlaceScope recorded_inside(inside);
      const OpTapScope observed(observer);
      body_->run(inputs, outputs);
      keeping.rethrow_failure();
    }
    recorded.end();
    then();
  }

  /// For whatever a replay throws that is not a std::exception: on a device thread it would end the
  /// process.
  [[noreturn]] void fail_non_standard() const {
    throw Error(
        fmt::format("the replay of `{}` threw something that is not a std::exception.", name()));
  }

 protected:
  [[nodiscard]] bool checks_values() const {
    const bool asked = record_ != nullptr && record_->checks_values();
    return settings_->checks_values() || (asked && options().check() != Check::None);
  }

  /// Null where no step is recorded.
  [[nodiscard]] CallRecord* call_record() const { return record_.get(); }

  /// Call when the first run is over, and its result is what the caller gets.
  void tell_first_run(const Footprint& footprint, const FirstRun& run) const {
    if (record_ == nullptr) return;
    if (run.result != FirstRun::Result::None) {
      run.for_each_result([this](at::Tensor& tensor) {
        if (tensor.defined()) record_->result(tensor);
      });
    }
    record_->first_run_ended(footprint, kept_, writes_, surroundings_.random_states());
  }

  [[nodiscard]] KeptResults& kept() { return kept_; }

  /// Call when all that the region keeps is kept.
  void let_kept_wait_in_tier() {
    if (!options().tier()) return;
    move_kept(kept_, options().tier(), name());
    MoveLine::current()->move_what_waits();
  }

  ~Frame() { drop_one_by_one(std::move(inputs_)); }

  void check_unchanged() const {
    const std::size_t input = inputs_.first_changed();
    if (input < inputs_.size()) {
      fail_changed(fmt::format("its tensor argument {}", input), inputs_.version(input));
    }
    for (const OutsideRead& read : reads_) {
      if (read.version.moved()) fail_changed(to_string(read), read.version);
      if (read.was_replaced()) fail_replaced(read);
    }
  }

  /// The tensors from outside that the first run read, those that still exist.
  void for_each_read(c10::function_ref<void(const at::Tensor&)> visit) const {
    for (const OutsideRead& read : reads_) {
      if (const auto alive = read.tensor.lock()) visit(at::Tensor(alive));
    }
  }

  /// Whether the body did more than what it saved until now tells: it may call for a replay itself,
  /// by taking gradients of what it has made so far, or may have ended in an exception.
  [[nodiscard]] bool first_run_is_incomplete() const {
    return running_ != nullptr || first_run_threw_;
  }

 private:
  /// An input's graph may hold the last reference to the frame before this one, and so on: without
  /// deep recursion.
  static void drop_one_by_one(RegionInputs&& inputs) {
    static constinit thread_local std::vector<RegionInputs>* waiting = nullptr;
    if (waiting != nullptr) return waiting->push_back(std::move(inputs));
    std::vector<RegionInputs> list;
    waiting = &list;
    list.push_back(std::move(inputs));
    while (!list.empty()) {
      const RegionInputs goes = std::move(list.back());
      list.pop_back();
    }
    waiting = nullptr;
  }

  void finish(Footprint& footprint) {
    surroundings_.set_random(running_random_->drawn_from(footprint.work().drew_on));
    running_ = nullptr;
    take_inputs(footprint);
    reads_ = footprint.take_reads();
    writes_ = footprint.writes();
  }

  /// What the first run has touched so far.
  void take_so_far(const Footprint& footprint) {
    surroundings_.set_random(running_random_->all());
    take_inputs(footprint);
    reads_ = footprint.reads();
    writes_ = footprint.writes();
  }

  void take_inputs(const Footprint& footprint) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (footprint.entry_of_input(i).defined()) inputs_.replace(i, footprint.entry_of_input(i));
    }
  }

  [[noreturn]] void fail_changed(const std::string& what, const VersionMark& version) const {
    throw DivergenceError(
        fmt::format(
            "cannot replay `{}`: a tensor that it reads was changed in place since the forward.",
            name()),
        fmt::format("changed: {}, version {} then, {} now", what, version.then(), version.now()),
        "likely cause: an optimizer step, or an in-place operation, between forward and backward.",
        "call backward first, or let the region read a clone.");
  }

  [[noreturn]] void fail_replaced(const OutsideRead& read) const {
    throw DivergenceError(
        fmt::format(
            "cannot replay `{}`: a tensor that it reads got other memory since the forward.",
            name()),
        fmt::format("changed: {}", to_string(read)),
        "likely cause: set_data(), or Module::to() to another device or dtype.",
        "call backward first.");
  }

  std::shared_ptr<const RegionSettings> settings_;
  std::unique_ptr<Body> body_;
  RegionInputs inputs_;
  Surroundings surroundings_;
  std::vector<OutsideRead> reads_;
  std::vector<OutsideWrite> writes_;
  KeptResults kept_;
  std::unique_ptr<CallRecord> record_;
  // While the first run goes on:
  Footprint* running_ = nullptr;
  const EntryRandomState* running_random_ = nullptr;

  bool first_run_threw_ = false;
};

}  // namespace refrain::detail
