// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/argument_tensors.hpp>
#include <refrain/detail/footprint.hpp>
#include <refrain/detail/kept_results.hpp>
#include <refrain/detail/op_log.hpp>
#include <refrain/detail/outside_tensors.hpp>
#include <refrain/detail/random_state.hpp>
#include <refrain/detail/slots.hpp>
#include <refrain/detail/step_recorder.hpp>
#include <refrain/detail/storage_set.hpp>
#include <refrain/detail/surroundings.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/ledger.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// What one call of a region tells the step that is being recorded.
class CallRecord {
 public:
  /// Whom the regions that this thread calls tell, and the call that they are inside of.
  struct Place {
    std::shared_ptr<StepRecorder> step;
    std::int64_t call = -1;
  };
  /// While it lives.
  class PlaceScope {
   public:
    explicit PlaceScope(const Place* place) : before_(std::exchange(here_, place)) {}
    ~PlaceScope() { here_ = before_; }
    PlaceScope(const PlaceScope&) = delete;
    PlaceScope& operator=(const PlaceScope&) = delete;

   private:
    const Place* before_;
  };

  /// Null where no step is recorded.
  [[nodiscard]] static std::unique_ptr<CallRecord> open(const std::string& region,
                                                        const std::vector<at::Tensor>& arguments) {
    if (here_ == nullptr) return nullptr;
    const std::int64_t call = here_->step->begin_call(region, here_->call);
    if (call < 0) return nullptr;
    return std::make_unique<CallRecord>(Place{here_->step, call}, arguments);
  }

  CallRecord(Place place, const std::vector<at::Tensor>& arguments)
      : place_(std::move(place)), arguments_(arguments.size()) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      std::vector<at::Tensor> tensors;
      std::string what = fmt::format("argument {}", i);
      if (arguments[i].defined()) {
        tensors = {arguments[i]};
        what += ", " + shape_text(TensorFacts(arguments[i]));
        inputs_.add(arguments[i]);
      }
      keep(KeptMemory::Why::Input, std::move(what), tensors);
      if (arguments[i].defined())
        told_.kept.back().made_from = place_.step->source_of(arguments[i]);
    }
  }

  [[nodiscard]] bool checks_values() const { return place_.step->checks_values(); }
  /// The calls in this one say so with it.
  [[nodiscard]] const Place& place() const { return place_; }

  // ---- the first run ----

  /// `extra`: generators besides LibTorch's own.
  void first_run_begins(const std::vector<at::Generator>& extra) {
    generators_.emplace(/*enabled=*/true, extra);
  }

  /// Whose operators say what saves what; it must outlive the first run. Default: its own.
  void use(const OpLog& log) { log_ = &log; }
  [[nodiscard]] OpLog& log() { return own_log_; }

  void saved(const at::Tensor& tensor, const Footprint& footprint) {
    ++told_.call.tensors;
    const bool is_input = inputs_.contains(storage_of(tensor));
    const bool is_made = !is_input && !footprint.is_outside(tensor);
    is_made_.push_back(is_made);
    if (!(is_input || is_made) || !tensor.has_storage()) return;
    StorageSet& to = is_made ? told_.made : saved_inputs_;
    if (to.contains(storage_of(tensor))) return;
    to.add(tensor);
    const auto bytes = Bytes(static_cast<std::int64_t>(tensor.storage().nbytes()));
    told_.call.saved += bytes;
    if (is_input) told_.call.saved_inputs += bytes;
    const OpLog& log = log_ == nullptr ? own_log_ : *log_;
    const std::string op = log.size() == 0 ? "nothing that was seen" : log.name(log.size());
    std::vector<SavedByOperator>& savers = told_.call.savers;
    const auto known = std::find_if(savers.begin(), savers.end(),
                                    [&op](const SavedByOperator& saver) { return saver.op == op; });
    if (known == savers.end()) {
      savers.push_back({op, bytes});
    } else {
      known->bytes += bytes;
    }
  }

  void result(const at::Tensor& tensor) {
    told_.results.add(tensor);
    told_.call.differentiable = told_.call.differentiable || tensor.requires_grad();
    place_.step->gave(place_.call, tensor.grad_fn().get());
  }

  /// `generators`: whose state the frame keeps.
  void first_run_ended(const Footprint& footprint, const KeptResults& kept,
                       const std::vector<OutsideWrite>& writes, std::size_t generators) {
    using Why = KeptMemory::Why;
    told_.call.draws = !generators_->drawn_from(footprint.work().drew_on).empty();
    if (generators > 0) {
      told_.kept_anyway.push_back(
          {Why::Random,
           fmt::format("of {} generators", generators),
           Bytes(static_cast<std::int64_t>(generators * sizeof(RandomState))),
           {},
           /*shared=*/false});
    }
    for (std::size_t i = 0; i < arguments_; ++i) {
      if (!footprint.entry_of_input(i).defined()) continue;
      StorageSet copy({footprint.entry_of_input(i)});  // instead of the argument itself
      told_.kept[i] = {Why::Buffer, fmt::format("copy of argument {}", i), std::move(copy)};
    }
    for (const OutsideWrite& write : writes)
      keep(Why::Buffer, "copy of " + shape_text(TensorFacts(write.entry)), {write.entry});
    for (const KeptCall& call : kept.calls) {
      if (!call.kept) continue;
      std::vector<at::Tensor> tensors = call.written;
      for (const c10::IValue& value : call.returns)
        for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
      keep(Why::Operator, described(call.schema->name(), tensors), tensors);
    }
    for (const auto& value : kept.values) {
      std::vector<at::Tensor> tensors;
      for (const KeptValue::Tensor& tensor : value->tensors) tensors.push_back(tensor.memory);
      keep(Why::Name, described(value->name, tensors), tensors);
    }
    std::stable_sort(told_.call.savers.begin(), told_.call.savers.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    for (const WatchedMemory& watched : told_.kept) {
      if (watched.why == Why::Operator || watched.why == Why::Name) results_.add(watched.memory);
    }
    StorageSet made = told_.made;
    made.remove(results_);
    made_ = Bytes(made.bytes());
    generators_.reset();
    own_log_.clear();
    place_.step->end_first_run(place_.call, std::move(told_));
  }

  // ---- a replay ----

  /// From its beginning until it ends or is destroyed.
  class Replay {
   public:
    /// Null: nobody records.
    explicit Replay(CallRecord* record) : record_(record) {
      if (record == nullptr) return;
      record->replay_ = record->place_.step->begin_replay(record->place_.call);
    }
    ~Replay() { end(); }
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

    void end() {
      if (record_ == nullptr) return;
      record_->place_.step->end_replay(record_->place_.call, record_->replay_);
      record_ = nullptr;
    }

   private:
    CallRecord* record_;
  };

  /// What the replay that has ended put back.
  void rebuilt(const std::deque<Slot>& slots, bool stopped_early) {
    StorageSet rebuilt;
    for (std::size_t i = 0; i < slots.size() && i < is_made_.size(); ++i) {
      if (is_made_[i] && slots[i].rebuilt.defined()) rebuilt.add(slots[i].rebuilt);
    }
    rebuilt.remove(results_);
    place_.step->replayed(place_.call, replay_, stopped_early, Bytes(rebuilt.bytes()));
  }
  /// The same for one that built all of the graph anew.
  void rebuilt_all() { place_.step->replayed(place_.call, replay_, false, made_); }

 private:
  void keep(KeptMemory::Why why, std::string what, const std::vector<at::Tensor>& tensors) {
    told_.kept.push_back({why, std::move(what), StorageSet()});
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) told_.kept.back().memory.add(tensor);
    }
  }

  static std::string described(const std::string& name, const std::vector<at::Tensor>& tensors) {
    std::string text = name;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) text += ", " + shape_text(TensorFacts(tensor));
    }
    return text;
  }

  static inline constinit thread_local const Place* here_ = nullptr;

  Place place_;
  std::size_t arguments_;
  std::optional<EntryRandomState> generators_;
  RecordedCall told_;
  StorageSet inputs_;
  StorageSet saved_inputs_;
  StorageSet results_;  ///< Kept ones: a replay does not make them.
  OpLog own_log_;
  const OpLog* log_ = nullptr;
  std::vector<bool> is_made_;  ///< By slot.
  Bytes made_;                 ///< What a replay of all of it makes and autograd saves.
  std::size_t replay_ = 0;     ///< The last one's place.
};

}  // namespace refrain::detail
