// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

[[noreturn]] inline void fail_clone(const std::string& from, const std::string& into) {
  throw Error(
      fmt::format("cannot clone {} into {}, which was registered under its name.", from, into),
      "likely cause: the parent's reset() registers another kind of module than its constructor "
      "did.");
}

/// A module that stands in another's place in the tree: the same name, parameters, buffers and
/// children under the same keys, so that a parent, an optimizer and an archive see no difference.
///
/// LibTorch lists a tree's parameters without asking its modules: what the wrapped module registers
/// or replaces is seen outside from the next `refresh()` on. Calls, `train()`, `to()`,
/// `zero_grad()` and `load()` begin with one.
template <class M>
class ModuleMirror : public torch::nn::Module {
 public:
  /// The wrapped module.
  [[nodiscard]] const std::shared_ptr<M>& inner() const { return inner_; }

  /// Takes over what the wrapped module has registered, replaced or removed since; true if that was
  /// anything. Threads that list parameters at the same time must be kept from it, as from
  /// registering.
  bool refresh() {
    if (!is_stale()) return false;
    const std::lock_guard<std::mutex> lock(refreshes_);
    reflect();
    return true;
  }

  // Registered here is registered there.
  template <class... Arguments>
  decltype(auto) register_module(Arguments&&... arguments) {
    return then_refresh([&]() -> decltype(auto) {
      return inner_module().register_module(std::forward<Arguments>(arguments)...);
    });
  }
  template <class... Arguments>
  decltype(auto) replace_module(Arguments&&... arguments) {
    return then_refresh([&]() -> decltype(auto) {
      return inner_module().replace_module(std::forward<Arguments>(arguments)...);
    });
  }
  void unregister_module(const std::string& key) {
    inner_module().unregister_module(key);
    refresh();
  }
  torch::Tensor& register_parameter(std::string key, torch::Tensor tensor,
                                    bool requires_grad = true) {
    return then_refresh([&]() -> torch::Tensor& {
      return inner_module().register_parameter(std::move(key), std::move(tensor), requires_grad);
    });
  }
  torch::Tensor& register_buffer(std::string key, torch::Tensor tensor) {
    return then_refresh([&]() -> torch::Tensor& {
      return inner_module().register_buffer(std::move(key), std::move(tensor));
    });
  }

  void train(bool on = true) override {
    refresh();
    inner_module().train(on);
  }
  [[nodiscard]] bool is_training() const noexcept override { return inner_module().is_training(); }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    refresh();
    inner_module().to(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    refresh();
    inner_module().to(dtype, non_blocking);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    refresh();
    inner_module().to(device, non_blocking);
  }
  void zero_grad(bool set_to_none = true) override {
    refresh();
    inner_module().zero_grad(set_to_none);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    inner_module().save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    refresh();
    inner_module().load(archive);
  }
  [[nodiscard]] bool is_serializable() const override { return inner_module().is_serializable(); }
  void pretty_print(std::ostream& stream) const override {
    stream << "refrain::Checkpoint<";
    inner_module().pretty_print(stream);
    stream << ">";
  }

  // Default arguments reach the wrapped module also through LibTorch's containers, which call
  // these.
  bool _forward_has_default_args() override { return (inner_module().*Access::has_defaults())(); }
  unsigned int _forward_num_required_args() override {
    return (inner_module().*Access::required())();
  }
  std::vector<torch::nn::AnyValue> _forward_populate_default_args(
      std::vector<torch::nn::AnyValue>&& arguments) override {
    return (inner_module().*Access::populate())(std::move(arguments));
  }

 protected:
  /// As LibTorch sees it: a module may have members of its own that are called `load` or `name`.
  [[nodiscard]] torch::nn::Module& inner_module() const { return *inner_; }

  explicit ModuleMirror(std::shared_ptr<M> inner)
      : Module(checked(inner).name()), inner_(std::move(inner)) {
    reflect();
  }

  /// What is found here was registered outside a call: likely too late for an optimizer.
  void refresh_before_call(const std::string& region) {
    if (!refresh()) return;
    TORCH_WARN(
        "refrain: what `", region,
        "` wraps has registered, replaced or removed parameters, buffers or children since it was "
        "wrapped. parameters() of its parents lists them from now on; an optimizer that was made "
        "before does not know them. Call refresh() on the wrapper after such a change.");
  }

  [[nodiscard]] std::shared_ptr<M> clone_inner(const std::optional<torch::Device>& device) const {
    return std::dynamic_pointer_cast<M>(inner_module().clone(device));
  }

  /// Wraps what `other` wraps, from now on.
  void become(const ModuleMirror& other) {
    Module::operator=(other);
    inner_ = other.inner_;
    buffer_count_ = other.buffer_count_;
  }

 private:
  // Protected members of another object are reached through pointers named in a derived class.
  struct Access : torch::nn::Module {
    static auto has_defaults() { return &Access::_forward_has_default_args; }
    static auto required() { return &Access::_forward_num_required_args; }
    static auto populate() { return &Access::_forward_populate_default_args; }
    static auto parameters() { return &Access::parameters_; }
  };

  [[nodiscard]] bool is_stale() const {
    const auto& theirs = inner_module().*Access::parameters();
    const bool same = std::equal(parameters_.begin(), parameters_.end(), theirs.begin(),
                                 theirs.end(), [](const auto& a, const auto& b) {
                                   return a.value().is_same(b.value()) && a.key() == b.key();
                                 });
    return !same || children() != inner_module().children() ||
           buffer_count_ != inner_module().buffers(/*recurse=*/false).size();
  }

  void reflect() {
    parameters_ = inner_module().*Access::parameters();
    const auto mine = named_buffers(/*recurse=*/false);
    const auto buffers = inner_module().named_buffers(/*recurse=*/false);
    for (const auto& item : buffers) {
      if (!mine.contains(item.key())) Module::register_buffer(item.key(), item.value());
    }
    buffer_count_ = buffers.size();
    for (const auto& item : named_children()) Module::unregister_module(item.key());
    for (const auto& item : inner_module().named_children())
      Module::register_module(item.key(), item.value());
  }

  /// What `work` gives, which changes what the wrapped module has registered.
  template <class Work>
  decltype(auto) then_refresh(const Work& work) {
    decltype(auto) result = work();
    refresh();
    return static_cast<decltype(result)>(result);
  }

  static const torch::nn::Module& checked(const std::shared_ptr<M>& inner) {
    if (inner == nullptr)
      throw OptionError("checkpoint: the module holder is empty.", "give it a module first.");
    return *inner;
  }

  std::shared_ptr<M> inner_;
  std::size_t buffer_count_ = 0;  ///< Buffers are never removed.
  std::mutex refreshes_;
};

}  // namespace refrain::detail
