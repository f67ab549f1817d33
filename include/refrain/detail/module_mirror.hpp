// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <torch/nn/module.h>

#include <fmt/format.h>

#include <cstddef>
#include <memory>
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
template <class M>
class ModuleMirror : public torch::nn::Module {
 public:
  /// The wrapped module.
  [[nodiscard]] const std::shared_ptr<M>& inner() const { return inner_; }

  void train(bool on = true) override { inner_module().train(on); }
  [[nodiscard]] bool is_training() const noexcept override { return inner_module().is_training(); }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    inner_module().to(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    inner_module().to(dtype, non_blocking);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    inner_module().to(device, non_blocking);
  }
  void zero_grad(bool set_to_none = true) override { inner_module().zero_grad(set_to_none); }
  void save(torch::serialize::OutputArchive& archive) const override {
    inner_module().save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override { inner_module().load(archive); }
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

  /// Takes over what the wrapped module has registered since.
  void reflect() {
    const auto missing = [](const auto& mine, const auto& key) { return !mine.contains(key); };
    const auto parameters = named_parameters(/*recurse=*/false);
    for (const auto& item : inner_module().named_parameters(/*recurse=*/false)) {
      if (missing(parameters, item.key()))
        register_parameter(item.key(), item.value(), item.value().requires_grad());
    }
    const auto buffers = named_buffers(/*recurse=*/false);
    for (const auto& item : inner_module().named_buffers(/*recurse=*/false)) {
      if (missing(buffers, item.key())) register_buffer(item.key(), item.value());
    }
    const auto children = named_children();
    for (const auto& item : inner_module().named_children()) {
      if (missing(children, item.key())) register_module(item.key(), item.value());
    }
  }

  [[nodiscard]] std::shared_ptr<M> clone_inner(const std::optional<torch::Device>& device) const {
    return std::dynamic_pointer_cast<M>(inner_module().clone(device));
  }

  /// Wraps what `other` wraps, from now on.
  void become(const ModuleMirror& other) {
    Module::operator=(other);
    inner_ = other.inner_;
  }

 private:
  // Protected members of another object are reached through pointers named in a derived class.
  struct Access : torch::nn::Module {
    static auto has_defaults() { return &Access::_forward_has_default_args; }
    static auto required() { return &Access::_forward_num_required_args; }
    static auto populate() { return &Access::_forward_populate_default_args; }
  };

  static const torch::nn::Module& checked(const std::shared_ptr<M>& inner) {
    if (inner == nullptr)
      throw OptionError("checkpoint: the module holder is empty.", "give it a module first.");
    return *inner;
  }

  std::shared_ptr<M> inner_;
};

}  // namespace refrain::detail
