// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>
#include <refrain/segment.hpp>

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

namespace refrain {

/// One stage of a chain, as a policy sees it.
struct Stage {
  std::string name;                   ///< "layers.3"
  std::string type;                   ///< "BlockImpl", for people
  std::type_index id = typeid(void);  ///< the module's type, for `policy::only<Type>()`
};

/// What follows the last stage.
enum class Tail {
  Loss,  ///< backward starts at the last stage: replaying it cannot lower the peak
  More,  ///< something that may hold memory of its own
};

/// The stages that a policy cuts, in the order they run.
struct Chain {
  std::vector<Stage> stages;
  Tail tail = Tail::Loss;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(stages.size()); }
};

namespace policy {

/// Decides which segments of a chain are replayed.
///
///     struct Odd {
///       Segmentation cut(const Chain& chain) const {
///         return policy::replay_where(chain, [](std::int64_t i) { return i % 2 == 1; });
///       }
///       std::string describe() const { return "odd()"; }
///     };
///
/// `describe` is what fmt prints. `cut` answers for any chain, the empty one too. A policy that
/// cuts alike after each k stages may say so, for loops whose length nobody knows ahead:
///
///       std::int64_t period() const { return k; }
template <class Policy>
concept SegmentPolicy =
    std::copyable<Policy> && requires(const Policy& policy, const Chain& chain) {
      { policy.cut(chain) } -> std::same_as<Segmentation>;
      { policy.describe() } -> std::convertible_to<std::string>;
    };

/// Any segment policy, as one type: what the library's functions take and the ready policies are.
///
///     AnyPolicy how = policy::every(4);
///     fmt::print("{}: {}\n", how, how.cut(chain));   // "every(4): [0,4)* [4,8)"
///
/// Throws `PlanError` from `cut` if the policy's answer has another number of stages than the
/// chain.
class AnyPolicy {
 public:
  using Cut = std::function<Segmentation(const Chain&)>;

  AnyPolicy(std::string description, Cut cut, std::optional<std::int64_t> period = {})
      : description_(std::move(description)), cut_(std::move(cut)), period_(period) {}

  template <class Policy>
    requires(!std::same_as<Policy, AnyPolicy> && SegmentPolicy<Policy>)
  AnyPolicy(Policy policy)  // implicit: every policy is one
      : description_(policy.describe()), period_(period_of(policy)) {
    cut_ = [policy = std::move(policy)](const Chain& chain) { return policy.cut(chain); };
  }

  template <class Policy>
    requires(!std::same_as<Policy, AnyPolicy> && !SegmentPolicy<Policy> &&
             requires(const Policy& policy, const Chain& chain) { policy.cut(chain); })
  AnyPolicy(const Policy& /*policy*/) {
    static_assert(std::same_as<Policy, AnyPolicy>,
                  "refrain: a segment policy is copyable and has `Segmentation cut(const Chain&) "
                  "const` and `std::string describe() const`");
  }

  [[nodiscard]] Segmentation cut(const Chain& chain) const {
    Segmentation cut = cut_(chain);
    if (cut.stages() != chain.size()) {
      throw PlanError(fmt::format("policy {} cut {} stages, the chain has {}.", description_,
                                  cut.stages(), chain.size()),
                      fmt::format("got: {}", cut),
                      "a policy's cut(chain) must cover every stage of the chain it is given.");
    }
    return cut;
  }

  [[nodiscard]] const std::string& describe() const { return description_; }

  /// After how many stages it cuts alike again; nothing if that depends on the whole chain.
  [[nodiscard]] std::optional<std::int64_t> period() const { return period_; }

 private:
  template <class Policy>
  static std::optional<std::int64_t> period_of(const Policy& policy) {
    if constexpr (requires { policy.period(); }) {
      return policy.period();
    } else {
      return {};
    }
  }

  std::string description_;
  Cut cut_;
  std::optional<std::int64_t> period_;
};

static_assert(SegmentPolicy<AnyPolicy>, "AnyPolicy must model SegmentPolicy");

}  // namespace policy
}  // namespace refrain

template <refrain::policy::SegmentPolicy Policy>
struct fmt::formatter<Policy, char> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const Policy& policy, Context& context) const {
    const std::string& text = policy.describe();
    return fmt::formatter<fmt::string_view>::format(text, context);
  }
};
