// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/memory.hpp>

#include <cstdint>
#include <functional>

namespace support {

/// Bytes of CPU tensors alive now, whoever holds them.
inline std::int64_t live_bytes() { return refrain::memory().live.count(); }

/// The highest number of live bytes while `work` ran, above what was alive before it.
inline std::int64_t peak_bytes_of(const std::function<void()>& work) {
  const auto before = live_bytes();
  refrain::reset_peak();
  work();
  return refrain::memory().peak.count() - before;
}

/// What `steps` runs of `step` leave behind, once `warm_up` runs have filled every lazy cache.
inline std::int64_t growth_over(int steps, const std::function<void(int)>& step, int warm_up = 5) {
  for (int i = 0; i < warm_up; ++i) step(i);
  const auto before = live_bytes();
  for (int i = 0; i < steps; ++i) step(i);
  return live_bytes() - before;
}

}  // namespace support
