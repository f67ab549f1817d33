// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/cache_sweep.hpp>
#include <refrain/detail/chain_scan.hpp>
#include <refrain/detail/device_meter.hpp>
#include <refrain/detail/profiled_chain.hpp>
#include <refrain/detail/segment_regions.hpp>
#include <refrain/detail/shared_leaves.hpp>
#include <refrain/detail/stage_meter.hpp>
#include <refrain/detail/step_undone.hpp>
#include <refrain/detail/surroundings.hpp>
#include <refrain/detail/terminal_progress.hpp>
#include <refrain/memory.hpp>
#include <refrain/options.hpp>
#include <refrain/policy/ops.hpp>
#include <refrain/profile.hpp>
#include <refrain/profile_options.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>
#include <c10/core/InferenceMode.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Measures a chain, stage by stage.
class ChainProfiler {
 public:
  ChainProfiler(const ProfileOptions& options, ProfiledChain chain)
      : options_(options),
        chain_(std::move(chain)),
        device_(chain_.device()),
        meter_(device_),
        settings_(settings_of(options)) {
    if (chain_.layers.empty()) {
      throw OptionError("cannot profile a chain without layers.");
    }
    if (c10::InferenceMode::is_enabled()) {
      throw OptionError("cannot profile in inference mode, where nothing has a gradient.",
                        "leave the c10::InferenceMode guard first.");
    }
    if (device_.is_cpu()) require_counting("profile()");
  }

  [[nodiscard]] Profile run() {
    {
      const at::AutoGradMode as_in_training(true);
      // Each layer is measured with the casts that it saves.
      const AutocastCacheOff own_casts;
      StepUndone undone(generators());
      measure(undone);
    }
    profile_.device = device_.str();
    profile_.signature = signature_of(chain_);
    const bool hooks = options_.checkpoint().route() == Route::Hooks;
    profile_.executor = hooks ? Executor::Hooks : Executor::Nested;
    profile_.resident = memory(device_).live + options_.reserve() + passed_;
    profile_.slack += kScalars;
    for (const policy::OpPolicy& policy : options_.keeps())
      profile_.keeps.push_back(policy.describe());
    return std::move(profile_);
  }

 private:
  [[nodiscard]] std::vector<at::Generator> generators() const {
    std::vector<at::Generator> all = options_.checkpoint().generators();
    all.insert(all.end(), chain_.generators.begin(), chain_.generators.end());
    return all;
  }

  /// Of a region over a stage, and of each option.
  static std::vector<StageMeter::Settings> settings_of(const ProfileOptions& options) {
    std::vector<CheckpointOptions> all = {options.checkpoint()};
    for (const policy::OpPolicy& policy : options.keeps())
      all.push_back(for_option(options.checkpoint(), policy));
    std::vector<StageMeter::Settings> settings;
    for (CheckpointOptions& one : all) {
      settings.push_back(std::make_shared<RegionSettings>(
          RegionSettings{std::move(one), "the stage that is measured"}));
    }
    return settings;
  }

  void measure(StepUndone& undone) {
    constant_ = StorageSet(chain_.input.tensors());
    const ChainScan scan = [&] {
      const Footprint::Scope watched(&undone.footprint());
      return ChainScan(chain_, constant_, meter_, options_.loss());
    }();
    profile_.layers = scan.stages();
    const CacheSweep sweep(device_, scan.kept());
    const TerminalProgress progress("profile", options_.progress());
    HeldValue value = behind_sinks(chain_.input);
    const auto stages = static_cast<std::int64_t>(profile_.layers.size());
    for (std::int64_t i = 0; i < stages; ++i) {
      measure_stage(i, scan, sweep, value);
      progress.done(i + 1, stages);
    }
    measure_loss(scan, std::move(value));
    fill_seconds();
    keep_output_during_loss();
  }

  /// `value` is the stage's input, and then the next one's.
  void measure_stage(std::int64_t i, const ChainScan& scan, const CacheSweep& sweep,
                     HeldValue& value) {
    const Segment layers = profile_.layers[static_cast<std::size_t>(i)];
    const bool last = i + 1 == static_cast<std::int64_t>(profile_.layers.size());
    const bool held = last && options_.output() == StepOutput::Held;
    const StageMeter::Run run = [this, layers](HeldValue given) {
      for (std::int64_t k = layers.begin; k < layers.end; ++k)
        given = chain_.layers[static_cast<std::size_t>(k)].run(std::move(given));
      return given;
    };
    StageCost cost;
    cost.name = name_of(layers);
    cost.input = i == 0 ? 0 : profile_.chain.stages.back().output;
    cost.output = output_bytes(run, value);
    note_unsaved_input(scan, layers.begin, cost);
    {
      LeafGradients gradients;
      const SharedLeaves shared = SharedLeaves::add(gradients, scan, layers);
      StageMeter meter(meter_, sweep, run, value, scan.result_gradients(layers.end - 1), gradients,
                       settings_, held ? StageMeter::Result::Held : StageMeter::Result::Dropped);
      meter.measure_bytes(cost);
      shared.add_to(cost);
      last_output_kept_.clear();
      for (std::size_t k = 0; last && k < meter.options(); ++k)
        last_output_kept_.push_back(meter.output_kept_by(k, cost.output));
      times_.push_back(measure_seconds(meter, cost));
    }
    value = behind_sinks(run(std::move(value)));
    if (held) profile_.chain.held = cost.output;
    profile_.chain.stages.push_back(std::move(cost));
  }

  /// Less often for a stage whose like was measured before: they share their samples.
  [[nodiscard]] StageTimes measure_seconds(StageMeter& meter, const StageCost& cost) const {
    StageTimes before(meter.options());
    const auto& stages = profile_.chain.stages;
    for (std::size_t k = 0; k < stages.size(); ++k) {
      if (stages[k] == cost) before.add(times_[k]);
    }
    StageTimes times(meter.options());
    const auto enough = [&] {
      return before.rounds() + times.rounds() >= options_.repeats() &&
             before.total() + times.total() >= options_.seconds();
    };
    do {
      meter.measure_seconds(times);
    } while (!enough());
    return times;
  }

  [[nodiscard]] std::string name_of(Segment layers) const {
    std::string name;
    for (std::int64_t k = layers.begin; k < layers.end; ++k) {
      if (!name.empty()) name += ", ";
      name += chain_.layers[static_cast<std::size_t>(k)].type;
    }
    return name;
  }

  /// Of what the stage gives on, the memory that it makes: not what is its input's, and from here
  /// on is taken to stay, nor what is somebody else's, as a buffer.
  std::int64_t output_bytes(const StageMeter::Run& run, const HeldValue& value) {
    StorageSet output;
    {
      const HeldValue result = run(value);
      output = StorageSet(result.tensors());
      output.remove(constant_);
      StorageSet passed = output;
      passed.keep_only(StorageSet(value.tensors()));
      output.remove(passed);
      passed_ += Bytes(passed.bytes());
      constant_.add(passed);
    }
    return output.bytes_gone();
  }

  /// Where part of the input is not the chain's own to let go, nothing is said to go.
  static void note_unsaved_input(const ChainScan& scan, std::int64_t layer, StageCost& cost) {
    if (layer == 0) return;
    const auto& sizes = scan.facts()[static_cast<std::size_t>(layer)].input_sizes;
    if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != cost.input) return;
    cost.input_unsaved = scan.unsaved_input(layer, /*by_nobody=*/false);
    cost.input_saved_by_nobody = scan.unsaved_input(layer, /*by_nobody=*/true);
  }

  void measure_loss(const ChainScan& scan, HeldValue value) {
    ChainCost& chain = profile_.chain;
    if (!options_.loss()) {
      chain.loss_peak = chain.boundary(chain.size());
      last_output_kept_.clear();
      return;
    }
    profile_.measured_loss = true;
    LeafGradients gradients;
    for (const at::Tensor& leaf : scan.loss_leaves()) gradients.add(leaf, false);
    std::vector<double> seconds;
    double sum = 0;
    for (std::int64_t n = 0; n <= options_.repeats() || sum < options_.seconds(); ++n) {
      gradients.reset();
      const auto begin = meter_.now();
      options_.loss()(value).backward();
      const double took = DeviceMeter::seconds(begin, meter_.now());
      sum += took;
      if (n > 0) seconds.push_back(took);  // the first warms up
    }
    chain.loss = StageTimes::median(std::move(seconds));
    gradients.reset();
    const auto& saves = scan.facts().back().saves_result;
    const bool stays = options_.output() == StepOutput::Held ||
                       std::find(saves.begin(), saves.end(), false) == saves.end();
    const std::int64_t base = meter_.live();
    const HeldValue holder = stays ? value : HeldValue();
    meter_.reset();
    // The caller's until its backward is over, and not always small: mse_loss leaves it the memory
    // of its temporaries.
    const at::Tensor loss = options_.loss()(std::move(value));
    loss.backward();
    chain.loss_peak = meter_.peak() - base;
    chain.held += meter_.live() - base + (stays ? 0 : chain.boundary(chain.size()));
    if (stays) last_output_kept_.clear();
  }

  /// Where the loss was measured without it.
  void keep_output_during_loss() {
    for (std::size_t k = 0; k < last_output_kept_.size(); ++k)
      profile_.chain.stages.back().options[k].saved += last_output_kept_[k];
  }

  /// Stages that are of one type and take the same bytes are taken to take the same time.
  void fill_seconds() {
    auto& stages = profile_.chain.stages;
    std::vector<StageTimes> pooled(stages.size(), StageTimes(options_.keeps().size()));
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (std::size_t k = 0; k < stages.size(); ++k) {
        // Not filled yet: equal means equal bytes and types.
        if (stages[i] == stages[k]) pooled[i].add(times_[k]);
      }
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      StageCost& stage = stages[i];
      GradRun& plain = stage.plain;
      plain.forward = StageTimes::median(pooled[i].plain().forward);
      plain.backward = StageTimes::median(pooled[i].plain().backward);
      // A region runs the same operators, and a replay runs some of them again: what a noisy clock
      // says beyond that must not make a plan.
      const auto forward = [&plain](const StageTimes::Way& way) {
        return std::max(plain.forward, StageTimes::median(way.forward));
      };
      const auto backward = [&plain](const StageTimes::Way& way) {
        return std::max(plain.backward + StageTimes::exact(kLeastReplay),
                        StageTimes::median(way.backward));
      };
      stage.nograd_forward = forward(pooled[i].region());
      const double region_backward = backward(pooled[i].region());
      stage.tail = plain.forward + plain.backward - region_backward;
      for (std::size_t k = 0; k < stage.options.size(); ++k) {
        stage.options[k].forward = forward(pooled[i].option(k));
        stage.options[k].backward = backward(pooled[i].option(k));
      }
    }
  }

  static constexpr double kLeastReplay = 1e-6;  // seconds
  static constexpr Bytes kScalars{1024};        // the loss itself, and such

  const ProfileOptions& options_;
  ProfiledChain chain_;
  c10::Device device_;
  DeviceMeter meter_;
  std::vector<StageMeter::Settings> settings_;
  StorageSet constant_;  ///< What is there all the time, or is taken to be.
  Bytes passed_;         ///< Of that, what the chain makes and hands from stage to stage.
  Profile profile_;
  std::vector<StageTimes> times_;
  std::vector<std::int64_t> last_output_kept_;  ///< Of the last stage, by each of its options.
};

}  // namespace refrain::detail
