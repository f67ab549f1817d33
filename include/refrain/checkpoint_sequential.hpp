// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/any_region.hpp>
#include <refrain/detail/any_value.hpp>
#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/module_mirror.hpp>
#include <refrain/detail/segment_regions.hpp>
#include <refrain/options.hpp>
#include <refrain/policy.hpp>

#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <typeinfo>
#include <utility>

namespace refrain {

/// A `Sequential` run in segments: what `checkpoint(sequential, policy)` gives back. Its modules,
/// their names and its archives are the `Sequential`'s own, which stays as it was.
///
/// Memory: the input of each replayed segment. Time: one more forward of the replayed segments per
/// backward. Throws `OptionError` or `PlanError` when made if the policy cannot cut that many
/// layers.
///
/// A template of one type, `CheckpointSequentialImpl`: who does not call it does not compile it.
template <class Sequential>
class BasicCheckpointSequentialImpl : public detail::ModuleMirror<Sequential>,
                                      public detail::AnyRegion {
 public:
  BasicCheckpointSequentialImpl(const torch::nn::Sequential& layers, policy::AnyPolicy policy,
                                CheckpointOptions options)
      : detail::ModuleMirror<Sequential>(layers.ptr()),
        policy_(std::move(policy)),
        options_(std::move(options)),
        name_(options_.name().empty() ? "layers" : options_.name()) {
    recut();
  }

  torch::Tensor forward(torch::Tensor input) { return call(std::move(input)); }

  /// Any inputs for the first layer, any result of the last.
  template <class Result = torch::Tensor, class... Inputs>
  Result call(Inputs&&... inputs) {
    this->refresh_before_call(name_);
    if (cut_.stages() != static_cast<std::int64_t>(this->inner()->size())) recut();
    if (!enabled_ || !detail::regions_are_on())
      return this->inner()->template forward<Result>(std::forward<Inputs>(inputs)...);
    detail::StageValue value(std::forward<Inputs>(inputs)...);
    value = Runner::run(Calls{this->inner(), regions_}, *regions_, std::move(value));
    return value.template result<Result>();
  }

  [[nodiscard]] const Segmentation& cut() const { return cut_; }
  [[nodiscard]] const policy::AnyPolicy& policy() const { return policy_; }

  [[nodiscard]] bool enabled() const override { return enabled_; }
  void set_enabled(bool on) override { enabled_ = on; }
  [[nodiscard]] const CheckpointOptions& options() const override { return options_; }
  [[nodiscard]] const std::string& region_name() const override { return name_; }
  void set_path(const std::string& path) override {
    if (!options_.name().empty() || name_ == path) return;
    name_ = path;
    recut();
  }
  [[nodiscard]] std::string wrapped_type() const override { return this->inner_module().name(); }
  [[nodiscard]] std::type_index wrapped_id() const override { return typeid(Sequential); }

  void pretty_print(std::ostream& stream) const override {
    stream << "refrain::CheckpointSequential<" << policy_.describe() << ">";
  }

  [[nodiscard]] std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<BasicCheckpointSequentialImpl>(
        torch::nn::Sequential(this->clone_inner(device)), policy_, options_);
    copy->enabled_ = enabled_;
    copy->set_path(name_);
    return copy;
  }

 private:
  struct Calls {
    std::shared_ptr<Sequential> layers;
    std::shared_ptr<detail::SegmentRegions> regions;

    [[nodiscard]] detail::StageValue run(std::size_t i, detail::StageValue value) const {
      return std::move(value).through(*(layers->begin() + static_cast<std::ptrdiff_t>(i)));
    }
    [[nodiscard]] std::size_t count_tensors(Segment range) const {
      std::size_t count = 0;
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        count += detail::count_tensors(*layers->ptr(static_cast<std::size_t>(i)));
      }
      return count;
    }
    [[nodiscard]] const Calls& kept(Segment) const { return *this; }
    [[nodiscard]] const std::shared_ptr<detail::SegmentRegions>& owner() const { return regions; }
  };
  using Runner = detail::SegmentRunner<Calls, detail::StageValue>;

  void recut() {
    Chain chain;
    for (const auto& child : this->inner_module().named_children()) {
      const torch::nn::Module& module = *child.value();
      chain.stages.push_back({child.key(), module.name(), typeid(module)});
    }
    cut_ = policy_.cut(chain);
    regions_ = detail::make_regions(cut_, name_, options_);
    this->refresh();
  }

  // LibTorch calls it on the children that a cloned parent has made anew.
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override {
    const auto copy = std::dynamic_pointer_cast<BasicCheckpointSequentialImpl>(other.clone(device));
    if (copy == nullptr) detail::fail_clone(other.name(), "a CheckpointSequential");
    this->become(*copy);
    policy_ = copy->policy_;
    options_ = copy->options_;
    name_ = copy->name_;
    enabled_ = copy->enabled_;
    recut();
  }

  policy::AnyPolicy policy_;
  CheckpointOptions options_;
  std::string name_;
  Segmentation cut_;
  std::shared_ptr<detail::SegmentRegions> regions_;
  bool enabled_ = true;
};

using CheckpointSequentialImpl = BasicCheckpointSequentialImpl<torch::nn::SequentialImpl>;

/// The holder of a `CheckpointSequentialImpl`.
class CheckpointSequential : public torch::nn::ModuleHolder<CheckpointSequentialImpl> {
 public:
  using torch::nn::ModuleHolder<CheckpointSequentialImpl>::ModuleHolder;

  /// The first layer's inputs in, a tensor out; `->call<Result>(inputs...)` for other results.
  template <class... Inputs>
  torch::Tensor operator()(Inputs&&... inputs) {
    return get()->call(std::forward<Inputs>(inputs)...);
  }
};

}  // namespace refrain
