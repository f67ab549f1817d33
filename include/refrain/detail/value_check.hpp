// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/backend_tap.hpp>
#include <refrain/detail/fingerprint.hpp>
#include <refrain/detail/footprint.hpp>
#include <refrain/detail/op_log.hpp>
#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/slots.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/error.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Compares the bits of what a replay saves with what the first run saved.
///
/// A kernel may fill a tensor after autograd has saved it, so its bits are taken when another
/// operator saves, or the run ends: at the same place in both runs, while they are in the cache.
/// What the region changes outside itself is left out: a replay saves it in another state.
class ValueCheck {
 public:
  enum class Keep { Fingerprints, Copies };

  explicit ValueCheck(Keep keep) : keep_(keep) {}

  /// Of the first run.
  [[nodiscard]] OpLog& log() { return first_log_; }

  /// Call for each slot of the first run, in order.
  void saved(std::size_t slot, const at::Tensor& tensor, const Footprint& footprint) {
    if (!waiting_.empty() && waiting_.front().call != first_log_.size()) take(footprint);
    waiting_.push_back({slot, tensor, first_log_.size()});
  }

  void run_ended(const Footprint& footprint) {
    take(footprint);
    std::erase_if(values_,
                  [&](const Value& value) { return footprint.has_written(value.storage); });
  }

  /// The log of the replay that begins.
  [[nodiscard]] OpLog& begin_replay() {
    waiting_.clear();
    difference_.reset();
    replay_log_.clear();
    return replay_log_;
  }

  /// Call for each slot that a replay fills, in order.
  void replayed(std::size_t slot, const at::Tensor& tensor) {
    if (!waiting_.empty() && waiting_.front().call != replay_log_.size()) compare();
    waiting_.push_back({slot, tensor, replay_log_.size()});
  }

  /// Of a replay that failed.
  void forget_replay() { waiting_.clear(); }

  /// Throws `DivergenceError` if the bits of a slot were others.
  void replay_ended(const std::deque<Slot>& slots, const std::string& region) {
    compare();
    if (difference_) fail(*difference_, slots[difference_->value->slot], region);
  }

 private:
  struct Waiting {
    std::size_t slot;
    at::Tensor tensor;
    std::size_t call;  ///< A place in the run's log.
  };
  struct Value {
    std::size_t slot;
    Fingerprint print;
    at::Tensor copy;
    const void* storage;
    std::size_t made_by;  ///< A place in the log; 0: what came from outside.
    std::size_t saved_by;
  };
  struct Difference {
    const Value* value;
    std::int64_t block;
    std::string element;
  };

  /// What is done here is no part of the run.
  struct Unseen {
    at::NoGradGuard no_grad;
    c10::impl::ExcludeDispatchKeyGuard untapped{OpTap::key()};
    BackendTap::Scope unkept{nullptr};
    HookScope unhooked{nullptr};
  };

  void take(const Footprint& footprint) {
    const Unseen unseen;
    for (const Waiting& waiting : waiting_) {
      const at::Tensor& tensor = waiting.tensor;
      if (!Fingerprint::can_take(tensor) || may_be_unfilled(waiting)) continue;
      values_.push_back({waiting.slot, Fingerprint(tensor),
                         keep_ == Keep::Copies ? tensor.detach().clone() : at::Tensor(),
                         storage_of(tensor), first_log_.place_of(footprint.born(tensor)),
                         waiting.call});
    }
    waiting_.clear();
  }

  /// Operators that save memory which they do not fill, or not all of it.
  [[nodiscard]] bool may_be_unfilled(const Waiting& waiting) const {
    if (waiting.call == 0) return false;
    const std::string& op = first_log_.name(waiting.call);
    if (op == "aten::lstm" || op == "aten::mkldnn_rnn_layer")
      return waiting.tensor.scalar_type() == at::kByte;  // a workspace
    return op.starts_with("aten::rrelu") || op == "aten::ctc_loss" || op == "aten::_ctc_loss";
  }

  void compare() {
    const Unseen unseen;
    for (const Waiting& waiting : waiting_) {
      if (difference_) break;
      const auto value =
          std::lower_bound(values_.begin(), values_.end(), waiting.slot,
                           [](const Value& one, std::size_t slot) { return one.slot < slot; });
      if (value == values_.end() || value->slot != waiting.slot) continue;
      const auto block = value->print.first_difference(waiting.tensor);
      if (!block) continue;
      difference_ = Difference{&*value, *block, {}};
      if (value->copy.defined()) difference_->element = element(value->copy, waiting.tensor);
    }
    waiting_.clear();
  }

  [[noreturn]] void fail(const Difference& difference, const Slot& slot,
                         const std::string& region) const {
    const Value& value = *difference.value;
    const std::int64_t begin = difference.block * Fingerprint::kBlock;
    std::string where =
        fmt::format("first difference at slot {}: {}, {}, in the {} bytes from {}", value.slot,
                    to_string(slot.facts), made(value), Fingerprint::kBlock, begin);
    if (!difference.element.empty()) where += "; " + difference.element;
    throw DivergenceError(
        fmt::format("replay of `{}` saved other values than the first run.", region), where,
        fmt::format("operators of the first run: {}", first_log_.around(value.saved_by)),
        fmt::format("operators of the replay:    {}", replay_log_.around(value.saved_by)),
        "likely cause: random numbers from a source that LibTorch does not know, a tensor changed "
        "behind autograd's back, a cache, or a kernel that gives other bits each time.",
        "see docs/reading_a_divergence.md");
  }

  [[nodiscard]] std::string made(const Value& value) const {
    const std::string saver =
        value.saved_by == 0 ? std::string() : ", saved by " + first_log_.name(value.saved_by);
    if (value.made_by == 0) return "from outside the region" + saver;
    return "made by " + first_log_.name(value.made_by) + saver;
  }

  /// "element [3, 1]: 0.5 then, 0.25 now"
  static std::string element(const at::Tensor& then, const at::Tensor& now) {
    const at::Tensor a = then.contiguous().view({-1}).cpu();
    const at::Tensor b = now.detach().contiguous().view({-1}).cpu();
    const auto width = static_cast<std::size_t>(a.element_size());
    const auto* const x = static_cast<const char*>(a.const_data_ptr());
    const auto* const y = static_cast<const char*>(b.const_data_ptr());
    const auto bytes = static_cast<std::size_t>(a.nbytes());
    const auto apart = static_cast<std::size_t>(std::mismatch(x, x + bytes, y).first - x);
    if (apart == bytes) return "elements that are equal by now";
    const auto place = static_cast<std::int64_t>(apart / width);
    std::string index;
    std::int64_t rest = place;
    for (std::int64_t dimension = then.dim(); dimension-- > 0;) {
      const std::int64_t at = rest % then.size(dimension);
      rest /= then.size(dimension);
      index = fmt::format("{}{}{}", at, index.empty() ? "" : ", ", index);
    }
    const auto number = [place](const at::Tensor& values) {
      const at::Scalar scalar = values[place].item();
      if (scalar.isComplex()) return std::string("a complex number");
      return scalar.isFloatingPoint() ? fmt::format("{}", scalar.toDouble())
                                      : fmt::format("{}", scalar.toLong());
    };
    return fmt::format("element [{}]: {} then, {} now", index, number(a), number(b));
  }

  Keep keep_;
  OpLog first_log_;
  OpLog replay_log_;
  std::vector<Waiting> waiting_;  ///< Of one operator.
  std::vector<Value> values_;     ///< By slot.
  std::optional<Difference> difference_;
};

}  // namespace refrain::detail
