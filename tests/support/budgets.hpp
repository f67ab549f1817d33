// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/plan.hpp>
#include <refrain/profile.hpp>

#include <cstdint>

namespace support {

/// So far on the way from the least budget to that of the plain step.
inline refrain::Bytes budget_between(const refrain::Profile& profile, double share) {
  using refrain::Bytes;
  const Bytes least = refrain::least_budget(profile);
  const Bytes plain = profile.resident + profile.slack + Bytes(refrain::plain_cost(profile).peak);
  return least +
         Bytes(static_cast<std::int64_t>(share * static_cast<double>((plain - least).count())));
}

}  // namespace support
