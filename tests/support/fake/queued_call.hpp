// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake/streams.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

/// An operator's call as work of a stream: the CPU's kernel on the device's memory.
namespace support::fake {

using Values = torch::jit::Stack;

inline Seconds kernel_time() { return machine().pace().kernel; }

/// The same memory as a CPU tensor that does not own it.
inline at::Tensor raw(const at::Tensor& t) {
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(),
                       t.options().device(at::kCPU).requires_grad(false));
}

/// The same value with other tensors.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    auto list = value.toTensorList().copy();
    for (std::size_t i = 0; i < list.size(); ++i) list.set(i, change(list.get(i)));
    return list;
  }
  if (value.isOptionalTensorList()) {
    auto list = value.toOptionalTensorList().copy();
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (const std::optional<at::Tensor> t = list.get(i)) list.set(i, change(*t));
    }
    return list;
  }
  return value;
}
template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  with_tensors(value, [&](const at::Tensor& t) { return visit(t), t; });
}

/// An operator's call whose results have known shapes before it runs.
class QueuedCall {
 public:
  /// Nothing if it has to run in the caller, on values.
  static std::optional<QueuedCall> plan(const c10::OperatorHandle& op, const Values& arguments) {
    using at::Tag;
    for (const auto tag :
         {Tag::nondeterministic_seeded, Tag::data_dependent_output, Tag::dynamic_output_shape}) {
      if (op.hasTag(tag)) return std::nullopt;
    }
    QueuedCall call(op, arguments);
    if (!call.arguments_fit() || !call.foresee()) return std::nullopt;
    return call;
  }

  /// Gives the call to the current stream, and its results, still to come, to the caller.
  Values launch() && {
    Values results;
    std::vector<at::Tensor> fresh;
    for (const auto& value : foreseen_) {
      results.push_back(with_tensors(value, [&](const at::Tensor& t) -> at::Tensor {
        const auto written = stands_for_.find(t.unsafeGetTensorImpl());
        if (written != stands_for_.end()) return fresh.emplace_back(), written->second;
        if (!t.defined()) return fresh.emplace_back();
        auto result = at::empty_strided(t.sizes(), t.strides(), t.options().device(device()));
        fresh.push_back(raw(result));
        return result;
      }));
    }
    machine().launch(machine().current(device_->index()), kernel_time(),
                     [op = op_, arguments = on_memory(), fresh] { run(op, arguments, fresh); });
    return results;
  }

 private:
  QueuedCall(const c10::OperatorHandle& op, Values arguments)
      : op_(op), arguments_(std::move(arguments)) {}

  c10::Device device() const { return *device_; }

  static bool is_written(const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  }
  static bool is_scalar(const at::Tensor& t) { return t.is_cpu() && t.dim() == 0; }

  /// All of one device, but what the host may lend: tensors that are only read.
  bool arguments_fit() {
    bool fit = true;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const bool written = is_written(op_.schema().arguments()[i]);
      if (arguments_[i].isGenerator()) fit = false;
      each_tensor(arguments_[i], [&](const at::Tensor& t) {
        if (!t.defined()) return;
        if (t.is_privateuseone()) {
          if (!device_) device_ = t.device();
          fit = fit && t.device() == *device_;
        } else {
          fit = fit && t.is_cpu() && !written;
        }
        fit = fit && t.layout() == at::kStrided && !t.is_conj() && !t.is_neg();
      });
    }
    return fit && device_;
  }

  /// Runs the operator on tensors without values to learn its results' shapes. False if that does
  /// not tell them.
  bool foresee() try {
    // Not every operator has a kernel for shapes. The CPU's kernel on zeros tells as much.
    const auto where = op_.hasKernelForDispatchKey(c10::DispatchKey::Meta) ? at::kMeta : at::kCPU;
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::DisableRecordFunctionGuard unseen;
    std::unordered_map<c10::TensorImpl*, at::Tensor> stand_ins;
    for (const auto& argument : arguments_) {
      foreseen_.push_back(argument.isDevice()
                              ? c10::IValue(c10::Device(where))
                              : with_tensors(argument, [&](const at::Tensor& t) {
                                  if (!t.defined() || is_scalar(t)) return t;
                                  auto& stand_in = stand_ins[t.unsafeGetTensorImpl()];
                                  if (!stand_in.defined()) {
                                    stand_in = at::empty_strided(t.sizes(), t.strides(),
                                                                 t.options().device(where));
                                    if (where == at::kCPU) stand_in.zero_();
                                    stands_for_[stand_in.unsafeGetTensorImpl()] = t;
                                    kept_.push_back(stand_in);
                                  }
                                  return stand_in;
                                }));
    }
    op_.redispatchBoxed(
        c10::DispatchKeySet(where == at::kMeta ? c10::DispatchKey::Meta : c10::DispatchKey::CPU),
        &foreseen_);
    return written_keep_their_shapes() && results_are_fresh_or_written();
  } catch (const std::exception&) {
    return false;  // in the caller it runs on real values, or throws the real complaint
  }

  bool written_keep_their_shapes() const {
    return std::ranges::all_of(kept_, [&](const at::Tensor& stand_in) {
      return stand_in.sizes() == stands_for_.at(stand_in.unsafeGetTensorImpl()).sizes();
    });
  }
  bool results_are_fresh_or_written() const {
    bool so = true;
    for (const auto& result : foreseen_) {
      so = so && (result.isTensor() || result.isTensorList() || result.isNone());
      each_tensor(result, [&](const at::Tensor& t) {
        if (!t.defined() || stands_for_.contains(t.unsafeGetTensorImpl())) return;
        so = so && std::ranges::none_of(kept_, [&](const auto& arg) { return t.is_alias_of(arg); });
      });
    }
    return so;
  }

  /// The arguments for the CPU's kernel. Host tensors go by value, as launches take them.
  Values on_memory() const {
    Values out;
    std::unordered_map<c10::TensorImpl*, at::Tensor> made;
    for (const auto& argument : arguments_) {
      out.push_back(argument.isDevice() ? c10::IValue(c10::Device(at::kCPU))
                                        : with_tensors(argument, [&](const at::Tensor& t) {
                                            if (!t.defined()) return t;
                                            auto& copy = made[t.unsafeGetTensorImpl()];
                                            if (!copy.defined()) {
                                              copy = t.is_privateuseone() ? raw(t) : by_value(t);
                                            }
                                            return copy;
                                          }));
    }
    return out;
  }
  static at::Tensor by_value(const at::Tensor& t) {
    auto copy = t.clone();
    const bool wrapped = t.unsafeGetTensorImpl()->is_wrapped_number();
    copy.unsafeGetTensorImpl()->set_wrapped_number(wrapped);
    return copy;
  }

  static void run(const c10::OperatorHandle& op, Values values,
                  const std::vector<at::Tensor>& fresh) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &values);
    std::size_t next = 0;
    for (const auto& value : values) {
      each_tensor(value, [&](const at::Tensor& t) {
        const auto& to = fresh.at(next++);
        if (!to.defined()) return;
        TORCH_CHECK(t.sizes() == to.sizes(), op.schema(), ": the shape depends on the values");
        to.copy_(t);
      });
    }
  }

  c10::OperatorHandle op_;
  Values arguments_;
  std::optional<c10::Device> device_;
  Values foreseen_;
  std::vector<at::Tensor> kept_;  // stand-ins for arguments
  std::unordered_map<c10::TensorImpl*, at::Tensor> stands_for_;
};

}  // namespace support::fake
