// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/memory_sample.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {

/// A stretch of time, in seconds since the step began.
struct TimeSpan {
  double begin = 0;
  double end = 0;

  [[nodiscard]] double seconds() const { return end - begin; }
  [[nodiscard]] bool contains(double moment) const { return begin <= moment && moment < end; }

  friend bool operator==(const TimeSpan&, const TimeSpan&) = default;
};

/// Memory that is there during the backward pass although a region forgets: whose, and why.
struct KeptMemory {
  enum class Why {
    Input,     ///< An argument of the region: the replay begins with it.
    Operator,  ///< The result of an operator that an operator policy keeps.
    Name,      ///< What `refrain::keep(name, …)` gave.
    Buffer,    ///< What something that the region changes held before.
    Random,    ///< Where the random generators stood.
    Output,    ///< A result of the region that somebody holds.
    Held,      ///< What autograd would save, and somebody holds anyway.
  };

  Why why = Why::Input;
  std::string what;  ///< "argument 0, float32[8, 128]", "aten::mm, float32[8, 512]", "router".
  Bytes bytes;
  std::string holder;   ///< Of outputs and of what is held: "`blocks.1`, its argument 0".
  bool shared = false;  ///< It is counted at another entry already.
  /// Of an input: the call whose result it was made of, by a few operators outside all regions. A
  /// place in `Ledger::calls`; -1: none, or that result itself.
  std::int64_t made_from = -1;

  friend bool operator==(const KeptMemory&, const KeptMemory&) = default;
};

[[nodiscard]] inline std::string_view to_string(KeptMemory::Why why) {
  switch (why) {
    case KeptMemory::Why::Input:
      return "input";
    case KeptMemory::Why::Operator:
      return "operator";
    case KeptMemory::Why::Name:
      return "name";
    case KeptMemory::Why::Buffer:
      return "buffer";
    case KeptMemory::Why::Random:
      return "random state";
    case KeptMemory::Why::Output:
      return "output";
    case KeptMemory::Why::Held:
      return "held anyway";
  }
  return "";
}

/// One replay of one call.
struct ReplayRun {
  TimeSpan time;
  bool stopped_early = false;
  Bytes rebuilt;            ///< What it put back for backward: the most that is there at once.
  std::int64_t thread = 0;  ///< Which of the step's threads ran it, from 0.

  friend bool operator==(const ReplayRun&, const ReplayRun&) = default;
};

/// What autograd would have saved of one operator's calls.
struct SavedByOperator {
  std::string op;  ///< "aten::linear": as the code calls it.
  Bytes bytes;

  friend bool operator==(const SavedByOperator&, const SavedByOperator&) = default;
};

/// One call of one region. Bytes are of memory, each storage once; parameters and other tensors
/// from outside are nobody's cost here.
struct RegionCall {
  std::string region;
  std::int64_t number = 0;      ///< Among the calls of this region, from 0.
  std::int64_t inside = -1;     ///< The call around it, a place in `Ledger::calls`; -1: none.
  std::int64_t tensors = 0;     ///< How many autograd would have saved.
  Bytes saved;                  ///< What it would have kept for them: what the plain call keeps.
  Bytes saved_inputs;           ///< Of that, its arguments.
  Bytes forgotten;              ///< Of `saved`, what was gone when backward began.
  bool draws = false;           ///< It drew random numbers.
  bool differentiable = false;  ///< A result of it needs a gradient.
  bool threw = false;           ///< Its first run did: nothing else is known of it.
  std::vector<KeptMemory> kept;
  std::vector<SavedByOperator> savers;  ///< Whose `saved` is, most first.
  TimeSpan first_run;
  std::vector<ReplayRun> replays;

  /// What the call itself keeps: inputs, kept results, buffers, random state.
  [[nodiscard]] Bytes keeps() const {
    Bytes sum;
    for (const KeptMemory& memory : kept) {
      const bool own = memory.why != KeptMemory::Why::Output && memory.why != KeptMemory::Why::Held;
      if (own && !memory.shared) sum += memory.bytes;
    }
    return sum;
  }
  [[nodiscard]] Bytes kept_for(KeptMemory::Why why) const {
    Bytes sum;
    for (const KeptMemory& memory : kept) {
      if (memory.why == why && !memory.shared) sum += memory.bytes;
    }
    return sum;
  }
  [[nodiscard]] double replay_seconds() const {
    double sum = 0;
    for (const ReplayRun& replay : replays) sum += replay.time.seconds();
    return sum;
  }
  [[nodiscard]] Bytes rebuilt_peak() const {
    Bytes most;
    for (const ReplayRun& replay : replays) most = std::max(most, replay.rebuilt);
    return most;
  }

  friend bool operator==(const RegionCall&, const RegionCall&) = default;
};

/// Memory that went to a tier, and came back when backward asked for it.
struct MovedMemory {
  std::string region;  ///< Who saved it first.
  std::string tier;
  Bytes bytes;
  TimeSpan out;                ///< While the step's own thread was handing it over.
  std::vector<TimeSpan> back;  ///< While a thread of backward waited for it.

  friend bool operator==(const MovedMemory&, const MovedMemory&) = default;
};

/// What a step does at one moment. `Loss`: between the last region and the backward pass, so the
/// head of a model too. `Rest`: after the last backward pass, the optimizer most likely.
enum class Phase { Forward, Region, Loss, Backward, Replay, Rest };

/// The moment at which most bytes lived, and what the step did then.
struct MemoryPeak {
  double seconds = 0;
  Bytes live;
  Phase phase = Phase::Forward;
  /// A place in `Ledger::calls`. Of `Region` and `Replay`: whose. Of `Backward`: whose replay was
  /// the last before, -1 if none was.
  std::int64_t call = -1;
};

/// What one step forgot, kept and replayed, and where its memory was. See `record`.
struct Ledger {
  std::vector<RegionCall> calls;   ///< In the order of their first runs.
  std::vector<MovedMemory> moved;  ///< In the order in which it went.
  std::vector<TimeSpan> backward_passes;
  double seconds = 0;  ///< Of the step.
  std::string device;  ///< Whose memory the timeline shows.
  bool whole = false;  ///< The timeline counts all that lives on the device; else what the step
                       ///< took, less what it gave back.
  std::vector<MemorySample> timeline;  ///< Empty where nobody could measure.

  /// What the step did at a moment, and in which call.
  [[nodiscard]] MemoryPeak at(double moment) const {
    MemoryPeak here{moment, {}, Phase::Forward, -1};
    double latest = -1;
    const auto look = [&](const TimeSpan& span, Phase phase, std::int64_t call) {
      if (!span.contains(moment) || span.begin < latest) return;
      latest = span.begin;
      here.phase = phase;
      here.call = call;
    };
    double last_region = -1;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto call = static_cast<std::int64_t>(i);
      look(calls[i].first_run, Phase::Region, call);
      for (const ReplayRun& replay : calls[i].replays) look(replay.time, Phase::Replay, call);
      if (calls[i].first_run.end <= moment)
        last_region = std::max(last_region, calls[i].first_run.end);
    }
    if (latest >= 0) return here;
    double next_backward = -1;
    double last_backward = -1;
    for (const TimeSpan& pass : backward_passes) {
      look(pass, Phase::Backward, last_replayed(pass.begin, moment));
      if (pass.begin > moment && next_backward < 0) next_backward = pass.begin;
      if (pass.end <= moment) last_backward = std::max(last_backward, pass.end);
    }
    if (latest >= 0) return here;
    if (next_backward < 0) {
      if (last_backward >= 0) here.phase = Phase::Rest;
    } else if (last_region > last_backward && !begins_between(moment, next_backward)) {
      here.phase = Phase::Loss;
    }
    return here;
  }

  /// Empty where nobody could measure.
  [[nodiscard]] std::optional<MemoryPeak> peak() const {
    const auto most = std::max_element(
        timeline.begin(), timeline.end(),
        [](const MemorySample& a, const MemorySample& b) { return a.live < b.live; });
    if (most == timeline.end()) return std::nullopt;
    MemoryPeak peak = at(most->seconds);
    peak.live = most->live;
    return peak;
  }

  /// What lived when a backward pass began beyond what lived when the step did, of the pass where
  /// that was most: what regions keep, what autograd keeps outside them, and what the step's own
  /// code holds. Empty where nobody could measure.
  [[nodiscard]] std::optional<Bytes> waiting() const {
    if (timeline.empty()) return std::nullopt;
    Bytes most;
    for (const TimeSpan& pass : backward_passes) {
      const auto after = std::upper_bound(
          timeline.begin(), timeline.end(), pass.begin,
          [](double moment, const MemorySample& sample) { return moment < sample.seconds; });
      if (after != timeline.begin()) most = std::max(most, (after - 1)->live - timeline[0].live);
    }
    return most;
  }

  friend bool operator==(const Ledger&, const Ledger&) = default;

 private:
  [[nodiscard]] std::int64_t last_replayed(double from, double to) const {
    double latest = from;
    std::int64_t last = -1;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      for (const ReplayRun& replay : calls[i].replays) {
        if (replay.time.begin < latest || replay.time.end > to) continue;
        latest = replay.time.begin;
        last = static_cast<std::int64_t>(i);
      }
    }
    return last;
  }
  [[nodiscard]] bool begins_between(double from, double to) const {
    return std::any_of(calls.begin(), calls.end(), [&](const RegionCall& call) {
      return call.first_run.begin >= from && call.first_run.begin < to;
    });
  }
};

}  // namespace refrain
