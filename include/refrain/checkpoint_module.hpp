// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/any_region.hpp>
#include <refrain/detail/first_call.hpp>
#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/module_mirror.hpp>
#include <refrain/detail/region.hpp>
#include <refrain/options.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

namespace refrain {
namespace detail {

/// A module's forward, as first run and replay call it.
template <class M>
struct ForwardCallee {
  static constexpr bool kIsNoexcept = is_noexcept_forward<M>();

  std::shared_ptr<M> module;

  template <class... A>
  decltype(auto) operator()(A&&... arguments) {
    return module->forward(std::forward<A>(arguments)...);
  }
  [[nodiscard]] const ForwardCallee& kept() const { return *this; }
  [[nodiscard]] ForwardCallee for_replay() const { return *this; }
};

/// What `CheckpointImpl` is, but for its `forward`.
///
/// A module may make parameters or buffers in its first forward. That forward is watched, and is
/// not forgotten if it does: a replay would find them made already.
template <class Derived, class M>
class CheckpointedModule : public ModuleMirror<M>, public AnyRegion {
 public:
  explicit CheckpointedModule(std::shared_ptr<M> inner, CheckpointOptions options = {})
      : ModuleMirror<M>(std::move(inner)),
        settings_(named(std::move(options), this->inner_module().name())) {}

  CheckpointedModule()
    requires std::default_initializable<M>
      : CheckpointedModule(std::make_shared<M>()) {}

  /// Calls the wrapped module's forward, with any of its default arguments left out.
  template <class... Arguments>
  auto call(Arguments&&... arguments) {
    this->refresh_before_call(settings_->name);
    if (!enabled_ || !regions_are_on()) {
      // The forward may make parameters.
      const RefreshAfter refreshing{*this};
      return this->inner()->forward(std::forward<Arguments>(arguments)...);
    }
    const FirstCall first(
        called_, [this] { return count_tensors(*this->inner()); }, [this] { this->refresh(); });
    return call_region(settings_, ForwardCallee<M>{this->inner()}, first.watch(),
                       std::forward<Arguments>(arguments)...);
  }

  [[nodiscard]] bool enabled() const override { return enabled_; }
  void set_enabled(bool on) override { enabled_ = on; }
  [[nodiscard]] const CheckpointOptions& options() const override { return settings_->options; }
  [[nodiscard]] const std::string& region_name() const override { return settings_->name; }
  void set_path(const std::string& path) override { settings_ = named(settings_->options, path); }
  [[nodiscard]] std::string wrapped_type() const override { return this->inner_module().name(); }
  [[nodiscard]] std::type_index wrapped_id() const override { return typeid(M); }

  /// A wrapper of a clone of the wrapped module, with the same options.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<Derived>(this->clone_inner(device), settings_->options);
    copy->settings_ = settings_;
    copy->enabled_ = enabled_;
    return copy;
  }

 private:
  struct RefreshAfter {
    CheckpointedModule& module;
    ~RefreshAfter() { module.refresh(); }
  };

  static std::shared_ptr<const RegionSettings> named(CheckpointOptions options,
                                                     const std::string& fallback) {
    auto settings = std::make_shared<RegionSettings>();
    settings->name = options.name().empty() ? fallback : options.name();
    settings->options = std::move(options);
    return settings;
  }

  // LibTorch calls it on the children that a cloned parent has made anew.
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override {
    const auto copy = std::dynamic_pointer_cast<Derived>(other.clone(device));
    if (copy == nullptr) fail_clone(other.name(), this->name());
    this->become(*copy);
    settings_ = copy->settings_;
    enabled_ = copy->enabled_;
  }

  std::shared_ptr<const RegionSettings> settings_;
  bool enabled_ = true;
  std::atomic<bool> called_ = false;
};

}  // namespace detail

/// A module whose forward is a region. To LibTorch it is the wrapped module: its parameters,
/// buffers, children, archive keys and modes are the wrapped module's own. `forward` has the
/// wrapped module's signature.
template <class M, class Signature = detail::forward_signature_t<M>>
class CheckpointImpl;

// `forward` is not inherited: `Sequential::at<Module>` and `AnyModule::get<Module>` read the class
// off `&Module::forward`.
template <class M, class Result, class... Arguments>
class CheckpointImpl<M, Result(Arguments...)>
    : public detail::CheckpointedModule<CheckpointImpl<M, Result(Arguments...)>, M> {
 public:
  using detail::CheckpointedModule<CheckpointImpl, M>::CheckpointedModule;

  // By value: what a reference refers to may be gone after the call.
  std::decay_t<Result> forward(Arguments... arguments) {
    return this->call(std::forward<Arguments>(arguments)...);
  }
};

template <class M>
class CheckpointImpl<M, detail::ManyForwards>
    : public detail::CheckpointedModule<CheckpointImpl<M, detail::ManyForwards>, M> {
 public:
  using detail::CheckpointedModule<CheckpointImpl, M>::CheckpointedModule;

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    return this->call(std::forward<Arguments>(arguments)...);
  }
};

/// A holder, as `TORCH_MODULE` makes them, of a checkpointed `Block`: copies share the module,
/// `*block` is the `CheckpointImpl`, `block->inner()` the wrapped module.
template <class Block>
class Checkpoint : public torch::nn::ModuleHolder<CheckpointImpl<detail::impl_of_t<Block>>> {
  using Impl = CheckpointImpl<detail::impl_of_t<Block>>;

 public:
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  /// Calls the wrapped module's forward; arguments with defaults may be left out.
  template <class... Arguments>
    requires requires(detail::impl_of_t<Block>& inner, Arguments&&... arguments) {
      inner.forward(std::forward<Arguments>(arguments)...);
    }
  auto operator()(Arguments&&... arguments) {
    return this->get()->call(std::forward<Arguments>(arguments)...);
  }

  template <class... Arguments>
    requires(!requires(detail::impl_of_t<Block>& inner, Arguments&&... arguments) {
      inner.forward(std::forward<Arguments>(arguments)...);
    })
  void operator()(Arguments&&...) {
    static_assert(
        detail::kAlwaysFalse<Block>,
        "refrain: the checkpointed module's forward() cannot be called with these arguments");
  }
};

}  // namespace refrain
