// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/argument_tensors.hpp>
#include <refrain/detail/births.hpp>
#include <refrain/detail/input_entries.hpp>
#include <refrain/detail/layout.hpp>
#include <refrain/detail/op_log.hpp>
#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/operator_traits.hpp>
#include <refrain/detail/outside_tensors.hpp>
#include <refrain/detail/pointer_map.hpp>
#include <refrain/detail/random_state.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/detail/written_shapes.hpp>
#include <refrain/error.hpp>

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Hears of each memory that a run is about to write to.
class WriteListener {
 public:
  virtual void written(const void* storage) = 0;

 protected:
  ~WriteListener() = default;
};

/// What one run of a region touches outside itself: found by watching its operators, so modules,
/// captures of a lambda and parameters are all seen alike.
///
/// A tensor is inside if an operator of this run made it. Regions nest: what a region reads from
/// outside is also read by every region around it that did not make it.
class Footprint final : public OpObserver {
 public:
  /// What to do when a captured tensor that gradients flow through is changed in place: no replay
  /// could undo that.
  enum class TrackedWrites { Refuse, LetPass };

  /// `inputs` are the region's tensor arguments. They must outlive the run.
  Footprint(std::string_view region, const std::vector<at::Tensor>& inputs,
            TrackedWrites tracked_writes = TrackedWrites::Refuse)
      : region_(region), inputs_(inputs), tracked_writes_(tracked_writes) {
    reads_.reserve(kUsualReads);
    outside_storages_.reserve(kUsualReads);
  }

  /// Watches this thread while it lives.
  class Scope {
   public:
    explicit Scope(Footprint* footprint)
        : here_(footprint), before_(std::exchange(innermost_, footprint)), tap_(footprint) {
      if (footprint != nullptr) footprint->begin(before_);
    }
    ~Scope() {
      innermost_ = before_;
      if (here_ == nullptr || before_ == nullptr) return;
      before_->work_.operators += here_->work_.operators;
      before_->work_.bytes += here_->work_.bytes;
      before_->work_.drew_on |= here_->work_.drew_on;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Footprint* here_;
    Footprint* before_;
    OpTapScope tap_;
  };

  /// How much a run has done so far.
  struct Work {
    std::int64_t operators = 0;
    std::int64_t bytes = 0;  ///< Of all results.
    DrewOn drew_on;          ///< Where operators drew random numbers.
  };
  [[nodiscard]] const Work& work() const { return work_; }
  /// From now on: lists the operators in `log`, and, if `known` is not null, refuses those that
  /// draw from generators other than LibTorch's own and these.
  void watch_closely(OpLog* log, const std::vector<at::Generator>* known) {
    log_ = log;
    known_ = known;
  }

  /// The moment at which the tensor, or else its memory, was made; before all that `log` holds if
  /// it was not here.
  [[nodiscard]] std::int64_t born(const at::Tensor& tensor) const {
    std::int64_t born = births_->of(tensor);
    if (born < start_) born = births_->of_memory(storage_of(tensor));
    return born < start_ ? -1 : born;
  }

  /// Whether the run has changed what came from outside in this memory, or, where `log` is kept,
  /// changed it in a way that no version counts.
  [[nodiscard]] bool has_written(const void* storage) const {
    return contains(written_storages_, storage) || contains(uncounted_, storage);
  }

  /// Whether nothing but an operator itself can have read what it gave by the time that the one
  /// which runs at the top level is over.
  [[nodiscard]] bool ran_alone(const c10::FunctionSchema& schema) const {
    const c10::FunctionSchema* const top = births_->running();
    return top == &schema ||
           (top != nullptr && (top->name() == "aten::matmul" || top->name() == "aten::linear"));
  }

  /// Tells `listener` of all that this run writes to, and the regions in it.
  void tell_writes(WriteListener* listener) { listener_ = listener; }

  /// Of the operator that runs; the next one's is greater by one, unless a region begins between.
  [[nodiscard]] std::int64_t moment() const { return births_->now(); }

  /// What it held before the run changed it in place; undefined for an input that the run left
  /// alone.
  [[nodiscard]] const at::Tensor& entry_of_input(std::size_t index) const {
    return inputs_.entry(index);
  }
  [[nodiscard]] const std::vector<OutsideWrite>& writes() const { return writes_; }

  /// What was read. What was written as a whole is put back for a replay: its version may move.
  [[nodiscard]] std::vector<OutsideRead> reads() const {
    std::vector<OutsideRead> reads = reads_;
    for (OutsideRead& read : reads) {
      if (!contains(written_storages_, read.storage)) continue;
      const auto tensor = read.tensor.lock();
      // What is put back may be a part of it; nobody else may have changed the rest.
      const bool in_part = tensor && written_in_part(tensor.get());
      read.version = in_part ? VersionMark(at::Tensor(tensor)) : VersionMark();
    }
    return reads;
  }

  /// The same, once the run is over.
  [[nodiscard]] std::vector<OutsideRead> take_reads() {
    if (!written_storages_.empty()) return reads();
    reads_.shrink_to_fit();
    return std::move(reads_);
  }

  /// Whether the tensor's contents came from outside and the run has left them alone.
  [[nodiscard]] bool is_settled(const at::Tensor& tensor) const {
    const void* const storage = storage_of(tensor);
    return holds(storage) && !contains(written_storages_, storage);
  }

  /// Whether the tensor lives in memory that came from outside.
  [[nodiscard]] bool is_outside(const at::Tensor& tensor) const {
    return holds(storage_of(tensor));
  }

  /// Whether an operator of this run made the tensor, be it a view of memory from outside.
  [[nodiscard]] bool made_inside(const at::Tensor& tensor) const {
    return births_->of(tensor) >= start_;
  }

  /// Whether a replay has another tensor in its place: one made in this run, or an argument that
  /// the run has changed.
  [[nodiscard]] bool is_own(const at::Tensor& tensor) const {
    const void* const storage = storage_of(tensor);
    return births_->of_memory(storage) >= start_ || inputs_.changed_in(storage) != nullptr;
  }

  /// Call after the run. An argument that it changed is a copy in the replay, where nobody else may
  /// have held its memory.
  void refuse_changed_arguments_held_elsewhere() const {
    for (const OutsideRead& read : reads_) {
      if (!contains(written_storages_, read.storage)) continue;
      const auto alive = read.tensor.lock();
      if (!alive || inputs_.contains(alive.get())) continue;
      if (const at::Tensor* const input = inputs_.changed_in(read.storage)) {
        refuse_write(region_, *input, "changes an argument whose memory a captured tensor shares");
      }
    }
  }

  /// Call inside the run, before anything else: it will change the tensor where operators do not
  /// show it.
  void declare_written(const at::Tensor& tensor) {
    const std::int64_t born = births_->of(tensor);
    for (Footprint* region = this; region != nullptr && born < region->start_;
         region = region->parent_) {
      if (region->captured_.find(tensor.unsafeGetTensorImpl()) == kWritten) continue;
      region->captured_.set(tensor.unsafeGetTensorImpl(), kWritten);
      region->declare_entry(tensor);
    }
  }

  void before(const OperatorHandle& op, const OperatorStack& stack) override {
    const OperatorTraits& traits = OperatorTraits::of(op);
    running_ = &traits;
    shapes_.clear();
    births_->operator_begins(op.schema());
    const c10::IValue* const arguments = stack.data() + (stack.size() - traits.arguments);
    for (std::size_t i = 0; i < traits.arguments; ++i) {
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { note_read(tensor, op, i); });
    }
    draws_ = traits.may_draw(arguments);
    if (traits.writes) note_writes(op, arguments, traits);
    if (traits.writes_statistics(arguments)) {
      for (std::ptrdiff_t i = traits.statistics; i < traits.statistics + 2; ++i) {
        for_each_tensor(arguments[i],
                        [&](const at::Tensor& tensor) { note_write(tensor, {.counted = false}); });
      }
    }
    births_->next_moment();
    if (log_ == nullptr) return;
    log_->add(op, births_->now());
    for (std::size_t i = 0; known_ != nullptr && i < traits.arguments; ++i) {
      if (arguments[i].isGenerator()) refuse_unknown(op, arguments[i].toGenerator());
    }
  }

  void after(const OperatorStack& stack) override {
    shapes_.refuse_changes(region_);
    const std::size_t count = running_->returns;
    const c10::IValue* const returns = stack.data() + (stack.size() - count);
    ++work_.operators;
    for (std::size_t i = 0; i < count; ++i) {
      for_each_tensor(returns[i], [&](const at::Tensor& tensor) {
        work_.bytes += bytes_of(tensor);
        if (draws_) work_.drew_on.add(tensor.device().type());
        // An operator may hand back an argument as it is.
        if (captured_.find(tensor.unsafeGetTensorImpl()) != PointerMap::kAbsent) return;
        births_->result(tensor);
      });
    }
  }

 private:
  void refuse_unknown(const OperatorHandle& op, const at::Generator& generator) const {
    const bool is_known = generator == at::globalContext().defaultGenerator(generator.device()) ||
                          std::find(known_->begin(), known_->end(), generator) != known_->end();
    if (is_known) return;
    throw Error(fmt::format("`{}` draws from a generator that no replay puts back ({}).", region_,
                            op.schema().name()),
                "name it: CheckpointOptions().generators({generator}).");
  }

  void begin(Footprint* parent) {
    parent_ = parent;
    births_ = parent == nullptr ? &own_births_ : parent->births_;
    start_ = births_->next_moment();
  }

  static bool contains(const std::vector<const void*>& pointers, const void* pointer) {
    return std::find(pointers.begin(), pointers.end(), pointer) != pointers.end();
  }

  void note_read(const at::Tensor& tensor, const OperatorHandle& op, std::size_t argument) {
    const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    if (impl->is_wrapped_number()) return;  // a plain number in disguise
    const void* const storage = storage_of(tensor);
    births_->argument(storage);
    std::int64_t born = births_->of(tensor);
    // Autograd makes a new tensor of what it saved, in the same memory, where no operator shows it.
    if (born < start_) born = std::max(born, births_->of_memory(storage));
    for (Footprint* region = this; region != nullptr && born < region->start_;
         region = region->parent_) {
      if (region->captured_.find(impl) != PointerMap::kAbsent) break;
      region->note_captured(tensor, op, argument);
    }
  }

  void note_captured(const at::Tensor& tensor, const OperatorHandle& op, std::size_t argument) {
    const void* const storage = storage_of(tensor);
    captured_.set(tensor.unsafeGetTensorImpl(), kRead);
    outside_storages_.push_back(storage);
    reads_.push_back({VersionMark(tensor), WeakTensor(tensor.getIntrusivePtr()), storage,
                      &op.schema(), argument, tensor.requires_grad()});
    // Other views of this memory were written before, and their entries are not all of this one.
    if (tracked_writes_ == TrackedWrites::Refuse && contains(written_storages_, storage) &&
        inputs_.changed_in(storage) == nullptr) {
      const at::NoGradGuard no_grad;
      const c10::impl::ExcludeDispatchKeyGuard unseen(OpTap::key());
      captured_.set(tensor.unsafeGetTensorImpl(), kWritten);
      keep_entry_of(tensor, storage);
    }
  }

  void note_writes(const OperatorHandle& op, const c10::IValue* arguments,
                   const OperatorTraits& traits) {
    bool tracked = false;
    if (traits.writes_in_graph && at::GradMode::is_enabled()) {
      for (std::size_t i = 0; i < traits.arguments && !tracked; ++i) {
        for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
          tracked = tracked || tensor.requires_grad();
        });
      }
    }
    for (std::size_t i = 0; i < traits.arguments; ++i) {
      if (!OperatorTraits::is_written(op.schema().arguments()[i])) continue;
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        note_write(tensor,
                   {.tracked = tracked && (tensor.is_floating_point() || tensor.is_complex())});
        if (tracked_writes_ == TrackedWrites::Refuse && is_captured(tensor)) shapes_.note(tensor);
      });
    }
  }

  [[nodiscard]] bool is_captured(const at::Tensor& tensor) const {
    return births_->of(tensor) < start_ && births_->of_memory(storage_of(tensor)) < start_ &&
           !inputs_.contains(tensor.unsafeGetTensorImpl());
  }

  struct Write {
    bool tracked = false;  ///< Gradients flow through it.
    bool counted = true;   ///< It moves the tensor's version.
  };

  void note_write(const at::Tensor& tensor, Write how) {
    const void* const storage = storage_of(tensor);
    for (Footprint* region = this; region != nullptr; region = region->parent_) {
      if (region->listener_ != nullptr) region->listener_->written(storage);
      if (region->log_ != nullptr && !how.counted) region->uncounted_.push_back(storage);
    }
    // By its memory: a tensor that no operator made (`buffer.data()`) may have the address of one
    // that died.
    const std::int64_t born = births_->of_memory(storage);
    for (Footprint* region = this; region != nullptr && born < region->start_;
         region = region->parent_) {
      // Memory that nobody has been seen to make or read is taken as outside where that costs no
      // more than a copy.
      if (!how.tracked || region->holds(storage)) region->keep_entry(tensor, storage, how);
    }
  }

  bool written_in_part(const c10::TensorImpl* impl) const {
    return !inputs_.contains(impl) && captured_.find(impl) != kWritten;
  }

  /// Whether the storage came from outside: an argument or something captured. Its address may have
  /// been used before.
  bool holds(const void* storage) const {
    return contains(outside_storages_, storage) && births_->of_memory(storage) < start_;
  }

  void declare_entry(const at::Tensor& tensor) {
    const void* const storage = storage_of(tensor);
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard unseen(OpTap::key());
    if (!contains(written_storages_, storage)) written_storages_.push_back(storage);
    if (!inputs_.keep_entry(region_, storage)) keep_entry_of(tensor, storage);
  }

  void keep_entry(const at::Tensor& tensor, const void* storage, Write how) {
    const bool first = !contains(written_storages_, storage);
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard unseen(OpTap::key());
    if (first) written_storages_.push_back(storage);
    if (inputs_.keep_entry(region_, storage)) return;
    if (how.tracked && tracked_writes_ == TrackedWrites::LetPass) return;
    if (how.tracked) {
      refuse_write(region_, tensor, "changes a captured tensor that gradients flow through");
    }
    if (!keep_whole_entries(storage, how.counted)) keep_entry_of(tensor, storage, how.counted);
  }

  /// One entry of each captured tensor in the storage serves for all writes to it, through whatever
  /// views. False if there is no such tensor.
  bool keep_whole_entries(const void* storage, bool counted) {
    bool any = false;
    for (std::size_t i = 0; i < reads_.size(); ++i) {
      if (reads_[i].storage != storage) continue;
      const auto alive = reads_[i].tensor.lock();
      if (!alive) continue;
      any = true;
      if (captured_.find(alive.get()) == kWritten) continue;
      captured_.set(alive.get(), kWritten);
      keep_entry_of(at::Tensor(alive), storage, counted);
    }
    return any;
  }

  void keep_entry_of(const at::Tensor& tensor, const void* storage, bool counted = false) {
    if (tensor.layout() != at::kStrided && tracked_writes_ == TrackedWrites::Refuse) {
      refuse_write(region_, tensor, "changes a captured tensor that is not dense");
    }
    at::Tensor live = tensor.detach();
    if (live.layout() == at::kStrided && at::has_internal_overlap(live) == at::MemOverlap::Yes) {
      live = span_of(live);
    }
    at::Tensor entry = live.clone();
    writes_.push_back({std::move(live), std::move(entry), counted, lender_of(tensor, storage)});
  }

  std::optional<WeakTensor> lender_of(const at::Tensor& tensor, const void* storage) const {
    if (!tensor.has_storage() || tensor.storage().data_ptr().get_context() != nullptr)
      return std::nullopt;
    for (const OutsideRead& read : reads_) {
      if (read.storage == storage) return read.tensor;
    }
    return std::nullopt;
  }

  static constexpr std::size_t kUsualReads = 16;
  // Of a tensor from outside:
  static constexpr std::int64_t kRead = 0;
  static constexpr std::int64_t kWritten = 1;  ///< As a whole, and its entry is kept.
  static inline constinit thread_local Footprint* innermost_ = nullptr;

  std::string_view region_;
  InputEntries inputs_;
  TrackedWrites tracked_writes_;
  Footprint* parent_ = nullptr;
  Births own_births_;
  Births* births_ = nullptr;  ///< Of the outermost region of this thread.
  std::int64_t start_ = 0;
  const OperatorTraits* running_ = nullptr;  ///< The operator between `before` and `after`.
  bool draws_ = false;                       ///< It may.
  OpLog* log_ = nullptr;
  WriteListener* listener_ = nullptr;
  std::vector<const void*> uncounted_;
  const std::vector<at::Generator>* known_ = nullptr;
  PointerMap captured_;
  Work work_;
  WrittenShapes shapes_;
  std::vector<OutsideRead> reads_;
  std::vector<OutsideWrite> writes_;
  std::vector<const void*> outside_storages_;
  std::vector<const void*> written_storages_;
};

}  // namespace refrain::detail
