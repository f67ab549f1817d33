// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "run_counter.hpp"
#include <refrain/checkpoint.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace support {

/// Of the host's random numbers, and of the device's.
inline void seed(std::uint64_t value, torch::Device device) {
  torch::manual_seed(value);
  if (device.is_cpu()) return;
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(value);
}

/// One training step on one side of a twin. A body builds its modules and inputs through it, so
/// that both sides start from the same random stream, and says what a user would look at.
class Step {
 public:
  /// An input whose gradient is compared.
  torch::Tensor leaf(torch::Tensor value) {
    value.requires_grad_();
    leaves_.push_back(value);
    return value;
  }

  /// A module whose parameters' gradients and buffers are compared.
  template <class Holder>
  Holder watch(Holder module) {
    modules_.push_back(module.ptr());
    return module;
  }

  /// Anything else worth comparing.
  void note(std::string name, const torch::Tensor& value) {
    const torch::NoGradGuard no_grad;
    trace_.emplace_back(std::move(name), value.defined() ? value.detach().clone() : value);
  }

  /// Notes the outputs and gives their weighted sum, in which no gradient cancels by symmetry.
  torch::Tensor loss(const std::vector<torch::Tensor>& outputs) {
    auto total = torch::zeros({}, torch::kDouble);
    for (const auto& output : outputs) {
      note("output " + std::to_string(trace_.size()), output);
      needs_grad_.push_back(output.requires_grad());
      if (!output.requires_grad()) continue;
      const auto weights =
          (torch::arange(output.numel(), torch::kDouble).sin() + 1.5).to(output.device());
      total = total + (output.to(torch::kDouble) * weights.view(output.sizes())).sum();
    }
    return total;
  }

  template <class... Outputs>
  void backward(const Outputs&... outputs) {
    loss({outputs...}).backward();
  }

  RunCounter ran;  ///< for the body of the region to count itself

 private:
  friend class Twin;

  void finish(torch::Device device) {
    for (const auto& leaf : leaves_) note("input gradient", leaf.grad());
    for (const auto& module : modules_) {
      for (const auto& item : module->named_parameters()) {
        note("gradient of " + item.key(), item.value().grad());
      }
      for (const auto& item : module->named_buffers()) note("buffer " + item.key(), item.value());
    }
    note("random numbers after the step", torch::rand({4}));
    note("the device's", torch::rand({4}, device));
  }

  std::vector<torch::Tensor> leaves_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<std::pair<std::string, torch::Tensor>> trace_;
  std::vector<bool> needs_grad_;
};

/// Wraps nothing: the plain side.
struct Plain {
  template <class Thing, class... How>
  Thing operator()(Thing thing, const How&...) const {
    return thing;
  }
};

/// Wraps with `refrain::checkpoint`: the side under test. A second argument is a policy.
struct Quiet {
  refrain::CheckpointOptions options;

  template <class Thing>
  auto operator()(Thing thing) const {
    return refrain::checkpoint(std::move(thing), options);
  }
  template <class Thing, class Policy>
  auto operator()(Thing thing, Policy policy) const {
    return refrain::checkpoint(std::move(thing), std::move(policy), options);
  }
};

/// Runs `body(wrap, step)` plain and checkpointed, and expects both to leave the same behind:
/// `Twin(options).of([](auto wrap, support::Step& step) { … step.backward(y); })`.
class Twin {
 public:
  explicit Twin(refrain::CheckpointOptions options = {}) : options_(std::move(options)) {}

  /// Lets values differ by so much (relative and absolute); the default is the same bits.
  Twin& tolerance(double value) {
    tolerance_ = value;
    return *this;
  }

  /// Where the body works; the default is the host.
  Twin& on(torch::Device device) {
    device_ = device;
    return *this;
  }

  template <class Body>
  Twin& of(Body&& body) {
    const auto run = [&](auto wrap) {
      Step step;
      seed(7, device_);
      body(wrap, step);
      step.finish(device_);
      return step;
    };
    const Step plain = run(Plain{});
    const Step quiet = run(Quiet{options_});
    runs_ = quiet.ran.runs();
    compare(plain, quiet);
    return *this;
  }

  /// How often the body counted itself on the checkpointed side.
  [[nodiscard]] int runs() const { return runs_; }

 private:
  void compare(const Step& plain, const Step& quiet) const {
    EXPECT_EQ(quiet.needs_grad_, plain.needs_grad_) << "an output's requires_grad differs";
    ASSERT_EQ(quiet.trace_.size(), plain.trace_.size());
    for (std::size_t i = 0; i < plain.trace_.size(); ++i) {
      EXPECT_EQ(quiet.trace_[i].first, plain.trace_[i].first);
      EXPECT_TRUE(same(plain.trace_[i].second, quiet.trace_[i].second))
          << plain.trace_[i].first << " differs; plain:\n"
          << plain.trace_[i].second << "\ncheckpointed:\n"
          << quiet.trace_[i].second;
    }
  }

  [[nodiscard]] bool same(const torch::Tensor& there, const torch::Tensor& here) const {
    if (!there.defined() || !here.defined()) return there.defined() == here.defined();
    const torch::Tensor a = there.cpu();
    const torch::Tensor b = here.cpu();
    if (a.dtype() != b.dtype() || a.sizes() != b.sizes()) return false;
    return tolerance_ == 0 ? torch::equal(a, b) : torch::allclose(a, b, tolerance_, tolerance_);
  }

  refrain::CheckpointOptions options_;
  torch::Device device_ = torch::kCPU;
  double tolerance_ = 0;
  int runs_ = 0;
};

}  // namespace support
