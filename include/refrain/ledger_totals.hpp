// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/ledger.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace refrain {

/// All that went to one tier.
struct MoveTotal {
  std::string tier;
  std::int64_t storages = 0;
  Bytes bytes = {};
  double out_seconds = 0;   ///< What the forward waited for it; threads of the host alone.
  double back_seconds = 0;  ///< The same of backward.
};

/// A total for each tier, in the order in which they were first used.
[[nodiscard]] inline std::vector<MoveTotal> move_totals(const Ledger& ledger) {
  std::vector<MoveTotal> totals;
  for (const MovedMemory& memory : ledger.moved) {
    auto total = std::find_if(totals.begin(), totals.end(),
                              [&](const MoveTotal& known) { return known.tier == memory.tier; });
    if (total == totals.end()) {
      totals.push_back({.tier = memory.tier});
      total = totals.end() - 1;
    }
    ++total->storages;
    total->bytes += memory.bytes;
    total->out_seconds += memory.out.seconds();
    for (const TimeSpan& back : memory.back) total->back_seconds += back.seconds();
  }
  return totals;
}

/// All calls of one region.
struct RegionTotal {
  std::string region;
  std::int64_t calls = 0;
  Bytes saved = {};
  Bytes forgotten = {};
  Bytes keeps = {};
  Bytes held = {};  ///< What autograd would save and somebody holds anyway.
  std::int64_t replays = 0;
  std::int64_t stopped_early = 0;
  double replay_seconds = 0;
  Bytes rebuilt_peak = {};  ///< Of its calls, the largest.

  void add(const RegionCall& call) {
    ++calls;
    saved += call.saved;
    forgotten += call.forgotten;
    keeps += call.keeps();
    held += call.kept_for(KeptMemory::Why::Held);
    replays += static_cast<std::int64_t>(call.replays.size());
    stopped_early += std::count_if(call.replays.begin(), call.replays.end(),
                                   [](const ReplayRun& replay) { return replay.stopped_early; });
    replay_seconds += call.replay_seconds();
    rebuilt_peak = std::max(rebuilt_peak, call.rebuilt_peak());
  }
};

/// A total for each region, in the order in which they were first called.
[[nodiscard]] inline std::vector<RegionTotal> totals(const Ledger& ledger) {
  std::vector<RegionTotal> totals;
  for (const RegionCall& call : ledger.calls) {
    auto total = std::find_if(totals.begin(), totals.end(), [&](const RegionTotal& known) {
      return known.region == call.region;
    });
    if (total == totals.end()) {
      totals.push_back({.region = call.region});
      total = totals.end() - 1;
    }
    total->add(call);
  }
  return totals;
}

}  // namespace refrain
