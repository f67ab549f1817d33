// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/first_run.hpp>
#include <refrain/detail/frame.hpp>
#include <refrain/detail/rebuilder.hpp>
#include <refrain/detail/short_what.hpp>
#include <refrain/detail/slots.hpp>
#include <refrain/detail/stop_rule.hpp>
#include <refrain/detail/stream_order.hpp>
#include <refrain/detail/value_check.hpp>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace refrain::detail {

/// One call of a region on the hooks route: autograd's own graph stays, but each tensor it would
/// keep is a numbered slot here, filled by a replay when the first of them is asked for.
///
/// A rebuilt tensor goes when its node is done: autograd then destroys the hook. Where the graph is
/// retained it goes at the end of the backward pass, and the next pass replays again.
///
/// Threads: nodes may ask from several device threads; one replays while the others wait. Locks are
/// taken from inner regions to outer ones.
class HooksFrame final : public Frame, public std::enable_shared_from_this<HooksFrame> {
 public:
  using Frame::Frame;

  /// The first run. While it is watched it remembers what it saves, and keeps it if it must stay
  /// plain. A body that cannot be left remembers too until it ends: a replay for a gradient that
  /// the body itself asks for would have to leave it.
  void run(const std::vector<at::Tensor>& inputs, const FirstRun& run) {
    EngineProxy::install();
    OpTap::stop_if_asked();
    never_stops_ = run.is_noexcept;
    remembers_ = run.watch != nullptr || never_stops_;
    Footprint footprint(name(), inputs);
    if (checks_values()) {
      values_ = std::make_unique<ValueCheck>(options().check() == Check::Copies
                                                 ? ValueCheck::Keep::Copies
                                                 : ValueCheck::Keep::Fingerprints);
      footprint.watch_closely(&values_->log(), &options().generators());
      if (call_record() != nullptr) call_record()->use(values_->log());
    } else if (call_record() != nullptr) {
      footprint.watch_closely(&call_record()->log(), /*known=*/nullptr);
    }
    Recorder recorder(*this, footprint);
    try {
      first_run(footprint, &recorder, call_record() == nullptr ? nullptr : &call_record()->place(),
                run.call);
    } catch (...) {
      remembers_ = false;
      values_.reset();
      throw;
    }
    if (values_) values_->run_ended(footprint);
    stop_rule_.run_ended(footprint);
    // No replay gets beyond the last tensor that is saved.
    if (stop() == Rebuilder::Stop::AtOnce) kept().calls.resize(calls_before_last_);
    tell_first_run(footprint, run);
    if (remembers_.exchange(false)) {
      stays_plain_ = run.watch != nullptr && run.watch->must_stay_plain();
      drop_rebuilt();
    }
    let_kept_wait_in_tier();
  }

 private:
  /// The engine's hold on a slot. Lives as long as autograd wants the tensor.
  class SlotHook final : public torch::autograd::SavedVariableHooks {
   public:
    SlotHook(std::shared_ptr<HooksFrame> frame, Footprint& footprint)
        : frame_(std::move(frame)), footprint_(&footprint) {}
    SlotHook(const SlotHook&) = delete;
    SlotHook& operator=(const SlotHook&) = delete;
    ~SlotHook() override {
      if (packed_) frame_->release(slot_);
    }

    void call_pack_hook(const at::Tensor& tensor) override {
      slot_ = frame_->record(tensor, *footprint_);
      packed_ = true;
    }
    at::Tensor call_unpack_hook() override { return frame_->rebuilt(slot_); }

   private:
    std::shared_ptr<HooksFrame> frame_;
    Footprint* footprint_;  // of the first run, which is over when the tensor is asked for
    std::size_t slot_ = 0;
    bool packed_ = false;
  };

  class Recorder final : public HookMaker {
   public:
    Recorder(HooksFrame& frame, Footprint& footprint)
        : frame_(frame.shared_from_this()), footprint_(footprint) {}
    std::unique_ptr<torch::autograd::SavedVariableHooks> make() override {
      return std::make_unique<SlotHook>(frame_, footprint_);
    }

   private:
    std::shared_ptr<HooksFrame> frame_;
    Footprint& footprint_;
  };

  /// While the first run goes on its last tensor is not known to be the last: a replay must end
  /// there.
  [[nodiscard]] Rebuilder::Stop stop() const {
    using Stop = Rebuilder::Stop;
    if (never_stops_) return Stop::Never;
    const EarlyStop asked = options().early_stop();
    const bool early = first_run_is_incomplete() || asked == EarlyStop::On ||
                       (asked == EarlyStop::Auto && stop_rule_.pays());
    if (!early) return Stop::Never;
    return stop_rule_.at_once() ? Stop::AtOnce : Stop::AtNextOperator;
  }

  std::size_t record(const at::Tensor& tensor, const Footprint& footprint) {
    stop_rule_.saved(tensor, footprint);
    calls_before_last_ = kept().calls.size();
    slots_.emplace_back(tensor);
    if (call_record() != nullptr) call_record()->saved(tensor, footprint);
    if (values_) values_->saved(slots_.size() - 1, tensor, footprint);
    if (remembers_) slots_.back().fill(tensor.tensor_data());
    return slots_.size() - 1;
  }

  at::Tensor rebuilt(std::size_t index) {
    if (this_thread_replays()) {
      throw Error(
          fmt::format("the replay of `{}` asks for a tensor that it is about to rebuild.", name()),
          "likely cause: the region runs a backward pass through its own result.");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Slot& slot = slots_[index];
    const bool checked = options().check() != Check::None;
    if (checked && slot.version.moved()) {
      check_unchanged();  // says more, where the region reads the tensor too
      fail_moved(index, slot.version.then(), slot.version.now());
    }
    if (!slot.rebuilt.defined()) replay_slots(index);
    // The body may have changed it after it was saved, where a plain run would complain too. What a
    // replay changed in a buffer was taken back, and so counts less.
    if (const auto now = version_of(slot.rebuilt); checked && now > slot.rebuilt_at) {
      fail_moved(index, slot.rebuilt_at, now);
    }
    drop_at_end_of_backward();
    order_.wait_for(slot.rebuilt);
    return slot.rebuilt;
  }

  void replay_slots(std::size_t asked_for) {
    const ReplayingHere replaying(*this);
    order_.clear();
    // A replay for a gradient that the body itself asks for comes before all values are taken.
    ValueCheck* const values = first_run_is_incomplete() ? nullptr : values_.get();
    Rebuilder rebuilder(slots_, stop(), options().check() != Check::None, values);
    std::string thrown;
    try {
      replay(&rebuilder, nullptr, values == nullptr ? nullptr : &values->begin_replay());
    } catch (const std::exception& error) {
      // The stop may arrive as another type (TorchScript wraps exceptions anew), so it is known by
      // its flag.
      if (!rebuilder.stopped() && rebuilder.comparison().equal_so_far()) {
        drop_slots();
        throw;
      }
      thrown = short_what(error);
    } catch (...) {
      drop_slots();
      fail_non_standard();
    }
    const bool as_before =
        rebuilder.stopped() || (!rebuilder.comparison().differs() && thrown.empty());
    if (as_before || (options().check() == Check::None && slots_[asked_for].rebuilt.defined())) {
      try {
        if (values != nullptr) values->replay_ended(slots_, name());
      } catch (...) {
        drop_slots();
        throw;
      }
      rebuilder.let_graph_go();
      if (call_record() != nullptr) call_record()->rebuilt(slots_, rebuilder.stopped());
      return mark_streams();
    }
    drop_slots();
    rebuilder.comparison().fail(name(), thrown);
  }

  /// Once all is rebuilt: other streams wait for the last of it.
  void mark_streams() {
    for (const Slot& slot : slots_) {
      if (slot.rebuilt.defined()) order_.mark(slot.rebuilt.device());
    }
  }

  [[noreturn]] void fail_moved(std::size_t index, std::uint32_t then, std::uint32_t now) const {
    throw DivergenceError(
        fmt::format("a tensor that `{}` saved for backward was changed in place since the forward.",
                    name()),
        fmt::format("slot {}: {}, version {} then, {} now", index, to_string(slots_[index].facts),
                    then, now),
        "likely cause: an optimizer step, or an in-place operation, between forward and backward.",
        "call backward first, or write to a clone.");
  }

  /// A slot's node is done with it. Nodes may also die while this thread replays: the body may drop
  /// an old result.
  void release(std::size_t index) {
    at::Tensor goes;  // destroyed after the lock
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (!this_thread_replays()) lock.lock();
    slots_[index].wanted = false;
    std::swap(goes, slots_[index].rebuilt);
  }

  void drop_rebuilt() {
    std::vector<at::Tensor> go;  // destroyed after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stays_plain_ || remembers_) return;
    for (Slot& slot : slots_) {
      if (slot.rebuilt.defined()) go.push_back(std::exchange(slot.rebuilt, {}));
    }
    order_.clear();
  }

  void drop_slots() {
    if (values_) values_->forget_replay();
    for (Slot& slot : slots_) slot.rebuilt.reset();
  }

  /// For retained graphs, and for slots rebuilt that nobody asks for.
  void drop_at_end_of_backward() {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task == -1 || task == task_) return;
    task_ = task;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [end = std::make_shared<EndOfBackward>(weak_from_this())] { end->arrives(); });
  }

  /// Arrives when the pass is over, or else, if it fails, is destroyed with it.
  class EndOfBackward {
   public:
    explicit EndOfBackward(std::weak_ptr<HooksFrame> frame) : frame_(std::move(frame)) {}
    ~EndOfBackward() { arrives(); }
    EndOfBackward(const EndOfBackward&) = delete;
    EndOfBackward& operator=(const EndOfBackward&) = delete;

    void arrives() {
      if (const auto alive = std::exchange(frame_, {}).lock()) alive->drop_rebuilt();
    }

   private:
    std::weak_ptr<HooksFrame> frame_;
  };

  class ReplayingHere {
   public:
    explicit ReplayingHere(HooksFrame& frame) : frame_(frame) {
      frame_.replaying_on_ = std::this_thread::get_id();
    }
    ~ReplayingHere() { frame_.replaying_on_ = std::thread::id(); }
    ReplayingHere(const ReplayingHere&) = delete;
    ReplayingHere& operator=(const ReplayingHere&) = delete;

   private:
    HooksFrame& frame_;
  };

  [[nodiscard]] bool this_thread_replays() const {
    return replaying_on_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  std::mutex mutex_;
  std::atomic<std::thread::id> replaying_on_{};
  std::deque<Slot> slots_;
  std::unique_ptr<ValueCheck> values_;  ///< Null: not in this call.
  StopRule stop_rule_;
  std::size_t calls_before_last_ = 0;  ///< Kept ones, when the last slot was saved.
  StreamOrder order_;
  int task_ = -1;  ///< The backward pass at whose end what is rebuilt will be dropped.
  std::atomic<bool> remembers_ = false;  ///< While the first run goes on: also beyond the end of a
                                         ///< backward pass of the body's own.
  bool stays_plain_ = false;
  bool never_stops_ = false;  ///< An early stop, an exception, could not leave the body.
};

}  // namespace refrain::detail
