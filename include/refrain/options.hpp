// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/kept_operators.hpp>
#include <refrain/error.hpp>
#include <refrain/policy/ops.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refrain {

/// What happens to the random stream: `Preserve` makes the replay draw the first run's numbers and
/// leaves the stream where the plain run leaves it; `Ignore` does neither, for regions that draw
/// nothing or may draw anew.
enum class Rng { Preserve, Ignore };

/// What is compared between first run and replay. `None`: nothing. `Metadata`: number, shape, dtype
/// and device of what autograd saves, and the versions of all that the region reads. `Values`: also
/// the bits of what autograd saves, by a fingerprint of each 4 KiB; and random numbers may only
/// come from generators that the replay puts back. `Copies`: the same with copies of all that is
/// saved, for looking at: messages then say which element differs. It saves no memory.
enum class Check { None, Metadata, Values, Copies };

/// The way into autograd: saved-tensor hooks (the default, gradients flow in the original graph),
/// or one graph node that runs the body again in its backward.
enum class Route { Hooks, Function };

/// Whether a replay ends once it has rebuilt the last tensor that is needed: where that saves more
/// time than it costs (the default), always, or never. What the region does after that point then
/// happens in the first run only.
enum class EarlyStop { Auto, On, Off };

/// What becomes of what autograd saves in a region: forgotten, and rebuilt by a replay (the
/// default), or moved to the region's tier, which replays nothing.
enum class Saved { Replayed, Moved };

/// How a region forgets and replays. Each setting may be given alone: `checkpoint(block,
/// Rng::Ignore)`.
///
///     auto quiet = refrain::checkpoint(block,
///     refrain::CheckpointOptions().name("decoder").rng(refrain::Rng::Ignore));
class CheckpointOptions {
 public:
  CheckpointOptions() = default;
  /*implicit*/ CheckpointOptions(Rng value) : rng_(value) {}
  /*implicit*/ CheckpointOptions(Check value) : check_(value) {}
  /*implicit*/ CheckpointOptions(Route value) : route_(value) {}
  /*implicit*/ CheckpointOptions(EarlyStop value) : early_stop_(value) {}
  /*implicit*/ CheckpointOptions(policy::OpPolicy value) { keep(std::move(value)); }

  /// What messages call the region. Default: the type of what is wrapped.
  CheckpointOptions& name(std::string value) { return set(name_, std::move(value)); }
  /// Default: `Rng::Preserve`.
  CheckpointOptions& rng(Rng value) { return set(rng_, value); }
  /// Default: `Check::Metadata`. `every`: of `Values` and `Copies`, in how many calls of the region
  /// once, beginning with the first; the other calls are checked by metadata. Throws `OptionError`
  /// for less than 1.
  CheckpointOptions& check(Check value, std::int64_t every = 1) {
    if (every < 1) {
      throw OptionError(fmt::format("check every {} calls: the number must be at least 1.", every),
                        "1 checks every call.");
    }
    check_every_ = every;
    return set(check_, value);
  }
  /// Default: `Route::Hooks`.
  CheckpointOptions& route(Route value) { return set(route_, value); }
  /// Default: `EarlyStop::Auto`.
  CheckpointOptions& early_stop(EarlyStop value) { return set(early_stop_, value); }
  /// Generators of the user's own that the region draws from. Default: none.
  CheckpointOptions& generators(std::vector<at::Generator> value) {
    return set(generators_, std::move(value));
  }
  /// Tensors that the region changes where Refrain cannot see it, through raw pointers: the replay
  /// reads what they held at the call, and they move once. Costs a copy of each a call. Default:
  /// none.
  CheckpointOptions& state(std::vector<at::Tensor> value) { return set(state_, std::move(value)); }

  /// What the first run keeps so that the replay need not run it again: results of operators, and
  /// which names of `refrain::keep`. Throws `OptionError` for operators that cannot be kept.
  /// Default: no operators, all names.
  CheckpointOptions& keep(policy::OpPolicy value) {
    kept_operators_ = std::make_shared<const detail::KeptOperators>(std::move(value));
    return *this;
  }

  /// Where what the region keeps waits for backward: its arguments and kept results, or, with
  /// `Saved::Moved`, all that autograd saves. What somebody else holds too stays where it is, and
  /// so does memory of less than `smallest` bytes. Default: none, all stays.
  CheckpointOptions& tier(AnyTier value, Bytes smallest = TierUse().smallest) {
    return set(tier_, TierUse{std::move(value), smallest});
  }
  /// The tiers that a plan moves memory to, in its order: each of its pieces takes its own, or
  /// none. Default: none.
  CheckpointOptions& tiers(std::vector<AnyTier> value) { return set(tiers_, std::move(value)); }
  /// Default: `Saved::Replayed`. `Moved` needs a tier.
  CheckpointOptions& saved(Saved value) { return set(saved_, value); }

  /// What the layers keep that a plan runs in its first, second, … option: the operator policies
  /// that were profiled, in that order. Throws `OptionError` as `keep` does. Default: none.
  CheckpointOptions& keeps(std::vector<policy::OpPolicy> value) {
    for (const policy::OpPolicy& policy : value) CheckpointOptions().keep(policy);
    return set(keeps_, std::move(value));
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Rng rng() const { return rng_; }
  [[nodiscard]] Check check() const { return check_; }
  [[nodiscard]] std::int64_t check_every() const { return check_every_; }
  [[nodiscard]] Route route() const { return route_; }
  [[nodiscard]] EarlyStop early_stop() const { return early_stop_; }
  [[nodiscard]] const std::vector<at::Generator>& generators() const { return generators_; }
  [[nodiscard]] const std::vector<at::Tensor>& state() const { return state_; }
  [[nodiscard]] const TierUse& tier() const { return tier_; }
  [[nodiscard]] const std::vector<AnyTier>& tiers() const { return tiers_; }
  [[nodiscard]] Saved saved() const { return saved_; }
  [[nodiscard]] policy::OpPolicy keep() const {
    return kept_operators_ ? kept_operators_->policy() : policy::OpPolicy();
  }
  [[nodiscard]] const std::vector<policy::OpPolicy>& keeps() const { return keeps_; }
  /// `keep()`, looked up; null for none.
  [[nodiscard]] const detail::KeptOperators* kept_operators() const {
    return kept_operators_.get();
  }

 private:
  template <class T>
  CheckpointOptions& set(T& field, T value) {
    field = std::move(value);
    return *this;
  }

  std::string name_;
  Rng rng_ = Rng::Preserve;
  Check check_ = Check::Metadata;
  std::int64_t check_every_ = 1;
  Route route_ = Route::Hooks;
  EarlyStop early_stop_ = EarlyStop::Auto;
  Saved saved_ = Saved::Replayed;
  TierUse tier_;
  std::vector<AnyTier> tiers_;
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> state_;
  std::shared_ptr<const detail::KeptOperators> kept_operators_;
  std::vector<policy::OpPolicy> keeps_;
};

[[nodiscard]] inline std::string to_string(const CheckpointOptions& options) {
  if (options.saved() == Saved::Moved) {
    return fmt::format("moved to {}{}", options.tier().tier,
                       options.check() == Check::None ? ", unchecked" : "");
  }
  std::string text = options.route() == Route::Hooks ? "hooks" : "function";
  if (options.rng() == Rng::Ignore) text += ", rng ignored";
  if (options.check() == Check::None) text += ", unchecked";
  if (options.check() == Check::Values) text += ", values checked";
  if (options.check() == Check::Copies) text += ", values checked by copies";
  if (options.check() >= Check::Values && options.check_every() > 1)
    text += fmt::format(" in one call of {}", options.check_every());
  if (options.early_stop() == EarlyStop::On) text += ", always stopped early";
  if (options.early_stop() == EarlyStop::Off) text += ", no early stop";
  if (options.kept_operators() != nullptr)
    text += fmt::format(", keeps {}", options.keep().describe());
  if (!options.keeps().empty())
    text += fmt::format(", a plan may keep by {} policies", options.keeps().size());
  if (options.tier()) text += fmt::format(", keeps in {}", options.tier().tier);
  if (!options.generators().empty())
    text += fmt::format(", {} generators", options.generators().size());
  if (!options.state().empty()) text += fmt::format(", {} state tensors", options.state().size());
  return text;
}

}  // namespace refrain
