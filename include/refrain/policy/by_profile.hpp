// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/policy/any_policy.hpp>
#include <refrain/policy/by_count.hpp>
#include <refrain/profile.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace refrain::policy {

/// Segments of √(N·X/A) of the profile's N stages, where X is what a boundary takes and A what a
/// stage keeps, both on average: about the least peak that equal segments can have.
///
///     auto stack = refrain::checkpoint(layers, refrain::policy::sqrt_bytes(profile));
///
/// A transformer block keeps sixteen times its boundary, which makes this 1 or 2 for 32 blocks
/// where `sqrt_n` says 6. Throws `PlanError` when it cuts a chain of another number of layers.
[[nodiscard]] inline AnyPolicy sqrt_bytes(const Profile& profile,
                                          LastSegment last = LastSegment::Plain) {
  double boundaries = 0;
  double kept = 0;
  for (const StageCost& stage : profile.chain.stages) {
    boundaries += static_cast<double>(stage.output);
    kept += static_cast<double>(stage.plain.saved);
  }
  const auto count = static_cast<double>(profile.chain.size());
  const double best = kept > 0 ? std::sqrt(count * boundaries / kept) : 1;
  const std::int64_t length = std::max<std::int64_t>(1, std::llround(best));
  return detail::uncounted("sqrt_bytes", last, [profile, length, last](const Chain& chain) {
    Chain stages;
    stages.tail = chain.tail;
    for (const StageCost& stage : profile.chain.stages) stages.stages.push_back({stage.name, {}});
    return in_layers(profile, every(length, last).cut(stages));
  });
}

}  // namespace refrain::policy
