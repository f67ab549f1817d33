// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/storage_set.hpp>
#include <refrain/ledger.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace refrain::detail {

/// Memory that a recorded call keeps, watched without holding it.
struct WatchedMemory {
  KeptMemory::Why why;
  std::string what;
  StorageSet memory;
  std::int64_t made_from = -1;
};

/// What a recorded call of a region has told so far.
struct RecordedCall {
  RegionCall call;
  StorageSet made;  ///< What autograd would save and the region made.
  StorageSet results;
  std::vector<WatchedMemory> kept;
  std::vector<KeptMemory> kept_anyway;  ///< Of no tensor: random state.

  // Of this call in the step:
  bool ended = false;    ///< Its first run is over.
  bool settled = false;  ///< It is written down what of its memory was still there.
  bool replayed = false;
};

}  // namespace refrain::detail
