// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/any_value.hpp>
#include <refrain/detail/held_value.hpp>
#include <refrain/error.hpp>
#include <refrain/options.hpp>
#include <refrain/policy/ops.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace refrain {

/// Whether a training step still holds the chain's output while it runs backward. `auto y =
/// layers(x); loss(y).backward();` does, and so does `loss(layers(x)).backward()`, whose
/// temporaries live to the end of the expression; `auto l = loss(layers(x)); l.backward();` does
/// not.
enum class StepOutput { Held, Dropped };

/// How a step of the chain looks, and how it is measured.
class ProfileOptions {
 public:
  using Progress = std::function<void(std::int64_t done, std::int64_t all)>;
  using Loss = std::function<at::Tensor(detail::HeldValue)>;

  /// What follows the chain: takes its output, gives a scalar. Default: nothing, and a gradient of
  /// the output's size.
  template <class Output = at::Tensor, class Function>
  ProfileOptions& loss(Function function) {
    loss_ = [function = std::move(function)](detail::HeldValue value) mutable {
      if (auto* const stage = value.as<detail::StageValue>())
        return at::Tensor(function(stage->result<Output>()));
      if (auto* const output = value.as<Output>()) return at::Tensor(function(std::move(*output)));
      throw OptionError("the chain's output is of another type than the loss takes.",
                        "name it: ProfileOptions().loss<Output>(function).");
    };
    return *this;
  }
  /// Default: `StepOutput::Held`.
  ProfileOptions& output(StepOutput value) {
    output_ = value;
    return *this;
  }
  /// What will be on the device in training and is not yet: an optimizer's state, before its first
  /// step. Default: nothing.
  ProfileOptions& reserve(Bytes value) {
    if (value.count() < 0) {
      throw OptionError(fmt::format("cannot reserve {}.", value),
                        "say what will be there besides: 0 or more.");
    }
    reserve_ = value;
    return *this;
  }
  /// Each stage is run so often at least. Default: 5.
  ProfileOptions& repeats(std::int64_t value) {
    if (value < 1) {
      throw OptionError(fmt::format("cannot measure a stage {} times.", value),
                        "ask for at least 1.");
    }
    repeats_ = value;
    return *this;
  }
  /// And at least so long, in seconds. Default: 0.03.
  ProfileOptions& seconds(double value) {
    if (!(value >= 0 && value < kMostSeconds)) {
      throw OptionError(fmt::format("cannot measure a stage for {} seconds.", value),
                        "ask for 0 to 3600.");
    }
    seconds_ = value;
    return *this;
  }
  /// How regions will be made. Default: as `checkpoint` makes them.
  ProfileOptions& checkpoint(CheckpointOptions value) {
    checkpoint_ = std::move(value);
    return *this;
  }
  /// Tiers that `fit` may move memory to, the one to be used first in front. Default: none.
  ProfileOptions& tiers(std::vector<AnyTier> value) {
    tiers_ = std::move(value);
    return *this;
  }
  /// What else may be done with a layer than to keep all of it or to replay all of it: each policy
  /// says what a region over the layer keeps, and the layer is measured so too. Throws
  /// `OptionError` for operators that cannot be kept. Default: none.
  ///
  ///     ProfileOptions().keeps({policy::keep_matmuls(), policy::keep_attention()})
  ProfileOptions& keeps(std::vector<policy::OpPolicy> value) {
    CheckpointOptions().keeps(value);
    keeps_ = std::move(value);
    return *this;
  }
  /// Called after each stage. Default: a line on the terminal, if it takes longer than two seconds.
  ProfileOptions& progress(Progress value) {
    progress_ = std::move(value);
    return *this;
  }

  [[nodiscard]] const Loss& loss() const { return loss_; }
  [[nodiscard]] StepOutput output() const { return output_; }
  [[nodiscard]] Bytes reserve() const { return reserve_; }
  [[nodiscard]] std::int64_t repeats() const { return repeats_; }
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] const CheckpointOptions& checkpoint() const { return checkpoint_; }
  [[nodiscard]] const std::vector<AnyTier>& tiers() const { return tiers_; }
  /// Where none are named here, those of `checkpoint()`.
  [[nodiscard]] const std::vector<policy::OpPolicy>& keeps() const {
    return keeps_.empty() ? checkpoint_.keeps() : keeps_;
  }
  [[nodiscard]] const Progress& progress() const { return progress_; }

 private:
  static constexpr std::int64_t kRepeats = 5;
  static constexpr double kSeconds = 0.03;
  static constexpr double kMostSeconds = 3600;

  Loss loss_;
  StepOutput output_ = StepOutput::Held;
  Bytes reserve_;
  std::int64_t repeats_ = kRepeats;
  double seconds_ = kSeconds;
  CheckpointOptions checkpoint_;
  std::vector<AnyTier> tiers_;
  std::vector<policy::OpPolicy> keeps_;
  Progress progress_;
};

}  // namespace refrain
