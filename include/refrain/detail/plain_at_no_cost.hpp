// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/ledger.hpp>
#include <refrain/memory_sample.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Which calls of a recorded step could have kept what they forget without a higher peak.
///
/// Left plain, a call would keep it from its first run until its replay, and its first run would
/// take what the replay does. Those that cost most time are asked first; what one would keep counts
/// for the next. Time: calls times samples of the timeline.
class PlainAtNoCost {
 public:
  /// For each call; true where nothing is known.
  [[nodiscard]] static std::vector<bool> needed(const Ledger& ledger) {
    std::vector<bool> needed(ledger.calls.size(), true);
    const auto peak = ledger.peak();
    if (!peak) return needed;
    std::vector<std::size_t> order(ledger.calls.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return ledger.calls[a].replay_seconds() > ledger.calls[b].replay_seconds();
    });
    PlainAtNoCost plan(ledger, peak->live);
    for (const std::size_t i : order) {
      const RegionCall& call = ledger.calls[i];
      // Where one of two nested calls is plain, the timeline does not tell about the other.
      const bool relative_is_plain = plan.has_plain_relative(i, needed);
      needed[i] = call.replays.empty() || relative_is_plain || !plan.takes(call);
    }
    return needed;
  }

 private:
  using Samples = std::vector<MemorySample>;

  PlainAtNoCost(const Ledger& ledger, Bytes peak)
      : ledger_(ledger), peak_(peak), live_(ledger.timeline) {}

  /// The last sample, if none is so late.
  template <class Timeline>
  static auto first_at(Timeline& samples, double moment) {
    const auto found = std::lower_bound(
        samples.begin(), samples.end(), moment,
        [](const MemorySample& sample, double seconds) { return sample.seconds < seconds; });
    return found == samples.end() ? found - 1 : found;
  }

  static Bytes most_in(const Samples& samples, TimeSpan time) {
    Bytes most;
    for (auto sample = first_at(samples, time.begin);
         sample != samples.end() && sample->seconds <= time.end; ++sample) {
      most = std::max(most, sample->live);
    }
    return most;
  }

  [[nodiscard]] bool has_plain_relative(std::size_t call, const std::vector<bool>& needed) const {
    for (std::size_t other = 0; other < needed.size(); ++other) {
      if (!needed[other] && (is_inside(call, other) || is_inside(other, call))) return true;
    }
    return false;
  }
  [[nodiscard]] bool is_inside(std::size_t inner, std::size_t outer) const {
    std::int64_t at = ledger_.calls[inner].inside;
    while (at >= 0 && at != static_cast<std::int64_t>(outer))
      at = ledger_.calls[static_cast<std::size_t>(at)].inside;
    return at >= 0;
  }

  bool takes(const RegionCall& call) {
    // Of a retained graph the plain call keeps until the last pass.
    const double replay = call.replays.back().time.begin;
    double begin = call.first_run.end;
    if (call.replays.front().time.begin < begin) return false;  // asked for by the body itself
    if (call.inside < 0) {
      // As much as its replay takes, beside what lived when it began.
      const TimeSpan first = call.replays.front().time;
      const Bytes rise =
          most_in(ledger_.timeline, first) - first_at(ledger_.timeline, first.begin)->live;
      if (first_at(live_, call.first_run.begin)->live + rise > peak_) return false;
    } else {
      // It runs once more where the call around it is replayed.
      const RegionCall& around = ledger_.calls[static_cast<std::size_t>(call.inside)];
      for (const ReplayRun& run : around.replays) {
        if (run.time.begin < call.replays.front().time.begin) begin = run.time.begin;
      }
    }
    const auto from = first_at(live_, begin);
    const auto to = first_at(live_, replay);
    const bool fits = std::all_of(from, to, [&](const MemorySample& sample) {
      return sample.live + call.forgotten <= peak_;
    });
    if (fits) {
      for (auto sample = from; sample < to; ++sample) sample->live += call.forgotten;
    }
    return fits;
  }

  const Ledger& ledger_;
  Bytes peak_;
  Samples live_;  ///< With what calls that were asked before would keep.
};

}  // namespace refrain::detail
