// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/slots.hpp>
#include <refrain/detail/value_check.hpp>
#include <refrain/error.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

namespace refrain::detail {

/// Sees what a replay saves, fills the slots of the first run, and ends the replay after the last.
class Rebuilder final : public HookMaker {
 public:
  /// When a replay that has filled the last slot is left.
  enum class Stop { Never, AtOnce, AtNextOperator };

  /// `compare`: whether what is saved must be what the slots say.
  /// `values` looks at the bits too, if it is not null.
  Rebuilder(std::deque<Slot>& slots, Stop stop, bool compare, ValueCheck* values)
      : slots_(slots), stop_(stop), comparison_(slots, compare), values_check_(values) {
    values_->reserve(comparison_.expected());
  }
  ~Rebuilder() { values_->clear(); }
  Rebuilder(const Rebuilder&) = delete;
  Rebuilder& operator=(const Rebuilder&) = delete;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make() override {
    return std::make_unique<Hook>(*this);
  }

  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] const SlotComparison& comparison() const { return comparison_; }

  /// Keeps what the slots hold, without the graph that it came from and that holds it.
  void let_graph_go() {
    values_->clear();
    for (Slot& slot : slots_) slot.leave_graph();
  }

 private:
  /// What the replay's own graph holds: the body may call `autograd::grad` itself. The body may
  /// also keep a result, and with it that graph: the values go when the replay is over all the
  /// same.
  class Hook final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hook(Rebuilder& rebuilder) : rebuilder_(&rebuilder), values_(rebuilder.values_) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      index_ = values_->size();
      values_->push_back(tensor);
      rebuilder_->saved(tensor);
    }
    at::Tensor call_unpack_hook() override {
      if (index_ < values_->size()) return (*values_)[index_];
      throw Error("a backward pass runs through a tensor that a replay made, after that replay.",
                  "likely cause: a region keeps one of its results in a member, and it is used "
                  "later.",
                  "use the first run's result, or return it from the region.");
    }

   private:
    Rebuilder* rebuilder_;  // while it packs
    std::shared_ptr<std::vector<at::Tensor>> values_;
    std::size_t index_ = 0;
  };

  void saved(const at::Tensor& tensor) {
    if (stopped_) return;  // operators called while the body is being left
    const std::size_t index = comparison_.next(tensor);
    if (!comparison_.equal_so_far() || index >= comparison_.expected()) return;
    Slot& slot = slots_[index];
    if (slot.wanted && !slot.rebuilt.defined()) {
      slot.fill(tensor);
      if (values_check_ != nullptr) values_check_->replayed(index, tensor);
    }
    const bool last = index + 1 == comparison_.expected();
    if (!last || stop_ == Stop::Never) return;
    if (stop_ == Stop::AtNextOperator) return OpTap::stop_at_next_op(stopped_);
    stopped_ = true;
    throw StopReplay();
  }

  std::deque<Slot>& slots_;
  Stop stop_;
  SlotComparison comparison_;
  ValueCheck* values_check_;
  std::shared_ptr<std::vector<at::Tensor>> values_ = std::make_shared<std::vector<at::Tensor>>();
  bool stopped_ = false;
};

}  // namespace refrain::detail
