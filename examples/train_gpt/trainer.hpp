// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "gpt.hpp"
#include "meters.hpp"
#include "options.hpp"
#include "text.hpp"
#include <refrain/lint.hpp>
#include <refrain/memory.hpp>
#include <refrain/tier/disk.hpp>
#include <refrain/tier/host.hpp>
#include <refrain/tier/quantized.hpp>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace train_gpt {

using refrain::Bytes;

/// The device an option names, if it is here.
inline torch::Device device_for(const std::string& name) {
  std::optional<torch::Device> device;
  try {
    device.emplace(name);
  } catch (const std::exception&) {
    throw BadOption(fmt::format("--device {}: no device is called so; try cpu or cuda.", name));
  }
  if (device->is_cpu()) return torch::kCPU;
  const auto here = at::accelerator::getAccelerator();
  const auto count = here == device->type() ? at::accelerator::deviceCount() : 0;
  if (device->index() >= count || count == 0) {
    throw BadOption(fmt::format("--device {}: this LibTorch sees {} such device{} here.", name,
                                int{count}, count == 1 ? "" : "s"));
  }
  if (!device->has_index()) device->set_index(0);
  return *device;
}

/// bf16 arithmetic for the operations that gain by it, while it lives.
class Autocast {
 public:
  explicit Autocast(c10::DeviceType device)
      : device_(device),
        enabled_(at::autocast::is_autocast_enabled(device)),
        dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_enabled(device_, enabled_);
  }

 private:
  c10::DeviceType device_;
  bool enabled_;
  at::ScalarType dtype_;
};

struct Step {
  double loss = 0;
  double seconds = 0;
  refrain::MemoryUse memory;
};

/// "host", "disk:/scratch" or "quantized:8" as a tier; none for an empty text.
inline refrain::AnyTier tier_from(const std::string& word) {
  constexpr std::string_view kDisk = "disk:";
  constexpr std::string_view kQuantized = "quantized:";
  if (word == "host") return refrain::tier::host();
  if (word.starts_with(kQuantized))
    return refrain::tier::quantized(refrain::tier::host(), word.back() - '0');
  if (!word.starts_with(kDisk)) return {};
  try {
    return refrain::tier::disk(word.substr(kDisk.size()));
  } catch (const refrain::TierError&) {
    throw BadOption(fmt::format("--tier {}: cannot write to that folder.", word));
  }
}

/// A model, its optimizer and its place in the text: all that one training run is.
class Trainer {
 public:
  Trainer(const Options& options, const Text& text, const std::string& policy)
      : options_(options),
        text_(text),
        device_(device_for(options.device)),
        tier_(tier_from(options.tier)) {
    torch::manual_seed(options.seed);
    model_ = Gpt(Shape{text.vocabulary(), options.layers, options.width, options.heads, options.seq,
                       options.dropout});
    model_->to(device_);
    optimizer_.emplace(
        model_->parameters(),
        torch::optim::AdamWOptions(options.learning_rate).weight_decay(0.1).betas({0.9, 0.95}));
    use(policy);
  }

  /// Goes on under another policy.
  void use(const std::string& policy) {
    const auto route =
        options_.route == "function" ? refrain::Route::Function : refrain::Route::Hooks;
    auto at = stacks_.find(policy);
    if (at == stacks_.end()) {
      const auto budget = budget_from(policy);
      if (budget) plans_.emplace(policy, plan_for(*budget, route));
      const auto how = budget ? refrain::policy::AnyPolicy(plans_.at(policy)) : policy_from(policy);
      auto how_kept = refrain::CheckpointOptions(route).tier(tier_);
      if (policy == kOffload) how_kept.saved(refrain::Saved::Moved);
      at = stacks_.emplace(policy, model_->stack_of(how, std::move(how_kept))).first;
    }
    model_->use(at->second);
  }

  /// Of a policy that is a budget; null for others.
  const refrain::Plan* plan_of(const std::string& policy) const {
    const auto at = plans_.find(policy);
    return at == plans_.end() ? nullptr : &at->second;
  }

  /// One step of AdamW over `--accumulate` batches. `look` sees the gradients, off the clock.
  Step step(const std::function<void()>& look = {}) {
    refrain::reset_peak(device_);
    Step result;
    result.seconds += timed([&] {
      for (std::int64_t i = 0; i < options_.accumulate; ++i) {
        result.loss += backward(steps_ * options_.accumulate + i);
      }
    });
    if (look) {
      result.memory = refrain::memory(device_);
      look();
      refrain::reset_peak(device_);
    }
    result.seconds += timed([&] {
      optimizer_->step();
      optimizer_->zero_grad();
    });
    const auto now = refrain::memory(device_);
    result.memory = {now.live, std::max(now.peak, result.memory.peak)};
    ++steps_;
    return result;
  }

  /// What is found in a step's forward and backward on the first batch.
  std::vector<refrain::Finding> lint() {
    const auto batch = text_.batch(options_.batch, options_.seq, options_.seed, 0);
    const auto targets = batch.targets.to(device_);
    return refrain::lint([&](const at::Tensor& inputs) { return loss_on(inputs, targets); },
                         batch.inputs.to(device_));
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : model_->parameters()) all.push_back(parameter.grad());
    return all;
  }

  std::vector<at::Tensor> parameters() const { return model_->parameters(); }
  std::int64_t steps() const { return steps_; }
  std::int64_t tokens_per_step() const {
    return options_.accumulate * options_.batch * options_.seq;
  }
  std::int64_t replays() const { return model_->replays(); }
  torch::Device device() const { return device_; }

  /// Everything the next step depends on, so that a resumed run goes on exactly.
  void save(const std::string& path) const {
    torch::serialize::OutputArchive archive;
    torch::serialize::OutputArchive model;
    torch::serialize::OutputArchive optimizer;
    model_->save(model);
    optimizer_->save(optimizer);
    archive.write("model", model);
    archive.write("optimizer", optimizer);
    archive.write("steps", c10::IValue(steps_));
    for (const auto& [name, value] : facts()) archive.write(name, c10::IValue(value));
    for (const auto& device : random_devices()) {
      archive.write(random_name(device), generator(device).get_state());
    }
    try {
      archive.save_to(path);
    } catch (const std::exception&) {
      throw BadOption(fmt::format("--save {}: cannot be written.", path));
    }
  }

  void resume(const std::string& path) {
    torch::serialize::InputArchive archive;
    torch::serialize::InputArchive model;
    torch::serialize::InputArchive optimizer;
    c10::IValue steps;
    try {
      archive.load_from(path, device_);
      archive.read("model", model);
      archive.read("optimizer", optimizer);
      archive.read("steps", steps);
    } catch (const std::exception&) {
      throw BadOption(fmt::format("--resume {}: is not a file that --save has written.", path));
    }
    check_facts(archive, path);
    model_->load(model);
    optimizer_->load(optimizer);
    steps_ = steps.toInt();
    for (const auto& device : random_devices()) {
      at::Tensor state;
      if (!archive.try_read(random_name(device), state)) {
        throw BadOption(fmt::format("--resume {}: was saved on another --device.", path));
      }
      generator(device).set_state(state.cpu());
    }
  }

 private:
  /// Measures the blocks as they stand between the embedding and the loss, and plans.
  refrain::Plan plan_for(const Budget& budget, const refrain::CheckpointOptions& how) {
    const auto batch = text_.batch(options_.batch, options_.seq, options_.seed, 0);
    const auto inputs = batch.inputs.to(device_);
    const auto targets = batch.targets.to(device_);
    Bytes weights;
    for (const auto& parameter : parameters()) weights += Bytes(parameter.nbytes());
    refrain::ProfileOptions options;
    options.checkpoint(how).output(refrain::StepOutput::Dropped);
    options.loss([&](const torch::Tensor& x) { return loss_of(model_->scores(x), targets); });
    if (optimizer_->state().empty()) options.reserve(weights * 2);  // AdamW's two moments
    std::optional<Autocast> autocast;
    if (!options_.autocast.empty()) autocast.emplace(device_.type());
    // The first of several batches makes the gradients, the others find them.
    if (options_.accumulate > 1) fill_gradients();
    // The embedding's dropout draws too. A copy of a generator takes no bytes of what is measured.
    std::vector<at::Generator> before;
    for (const auto& device : random_devices()) before.push_back(generator(device).clone());
    const auto profile = refrain::profile(options, model_->blocks(), model_->embedded(inputs));
    for (const auto& copy : before) generator(copy.device()).set_state(copy.get_state());
    optimizer_->zero_grad();
    const Bytes plain = profile.resident + Bytes(refrain::plain_cost(profile).peak);
    const auto share = static_cast<double>(plain.count()) * budget.share;
    return refrain::plan(profile, budget.bytes.value_or(Bytes(static_cast<std::int64_t>(share))));
  }

  void fill_gradients() {
    for (auto& parameter : model_->parameters())
      parameter.mutable_grad() = torch::zeros_like(parameter);
  }

  double backward(std::int64_t index) {
    const auto batch = text_.batch(options_.batch, options_.seq, options_.seed, index);
    const auto loss = loss_on(batch.inputs.to(device_), batch.targets.to(device_)) /
                      static_cast<double>(options_.accumulate);
    loss.backward();
    return loss.item<double>();
  }

  torch::Tensor loss_on(const torch::Tensor& inputs, const torch::Tensor& targets) {
    std::optional<Autocast> autocast;
    if (!options_.autocast.empty()) autocast.emplace(device_.type());
    return loss_of(model_(inputs), targets);
  }

  static torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& targets) {
    return torch::nn::functional::cross_entropy(scores.flatten(0, 1).to(torch::kFloat),
                                                targets.flatten());
  }

  double timed(const std::function<void()>& work) const {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    work();
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  static at::Generator generator(torch::Device device) {
    return at::globalContext().defaultGenerator(device);
  }

  std::vector<torch::Device> random_devices() const {
    std::vector<torch::Device> devices{torch::kCPU};
    if (!device_.is_cpu()) devices.push_back(device_);
    return devices;
  }

  static std::string random_name(torch::Device device) {
    return "random_" + c10::DeviceTypeName(device.type(), true);
  }

  void check_facts(torch::serialize::InputArchive& archive, const std::string& path) const {
    for (const auto& [name, ours] : facts()) {
      c10::IValue theirs;
      archive.read(name, theirs);
      if (theirs.toInt() == ours) continue;
      throw BadOption(fmt::format("--resume {}: was saved with {} {}, not {}.", path, name,
                                  theirs.toInt(), ours));
    }
  }

  /// What must be the same when a run goes on.
  std::vector<std::pair<std::string, std::int64_t>> facts() const {
    return {{"layers", options_.layers},
            {"width", options_.width},
            {"heads", options_.heads},
            {"seq", options_.seq},
            {"batch", options_.batch},
            {"accumulate", options_.accumulate},
            {"seed", static_cast<std::int64_t>(options_.seed)},
            {"characters", text_.size()}};
  }

  const Options& options_;
  const Text& text_;
  torch::Device device_;
  refrain::AnyTier tier_;
  Gpt model_{nullptr};
  std::map<std::string, Stack> stacks_;
  std::map<std::string, refrain::Plan> plans_;
  std::optional<torch::optim::AdamW> optimizer_;
  std::int64_t steps_ = 0;
};

}  // namespace train_gpt
