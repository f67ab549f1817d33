// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/live_samples.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/saved_storages.hpp>
#include <refrain/detail/storage_set.hpp>
#include <refrain/ledger.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Memory that a recorded call keeps, watched without holding it.
struct WatchedMemory {
  KeptMemory::Why why;
  std::string what;
  StorageSet memory;
};

/// What a recorded call of a region has told so far.
struct RecordedCall {
  RegionCall call;
  StorageSet made;  ///< What autograd would save and the region made.
  StorageSet results;
  std::vector<WatchedMemory> kept;
  bool settled = false;  ///< What of all this somebody still holds is written down.
};

/// Writes down one step: what regions tell, backward passes, live bytes. Regions may tell from
/// several threads, and when the step is over: that counts no more.
class StepRecorder final : public BackwardListener {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Values { AsAsked, Checked };

  explicit StepRecorder(Values values) : values_(values) {}
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;
  ~StepRecorder() = default;

  /// Whether regions check values, whatever their options say.
  [[nodiscard]] bool checks_values() const { return values_ == Values::Checked; }
  /// Sees what autograd saves outside all regions.
  [[nodiscard]] HookMaker& outside() { return outside_; }

  /// A call of `region` begins, inside another or not (-1). Gives its place.
  std::int64_t begin_call(const std::string& region, std::int64_t inside) {
    const std::lock_guard lock(mutex_);
    const double moment = now();
    RecordedCall& recorded = calls_.emplace_back();
    recorded.call.region = region;
    recorded.call.number = numbers_[region]++;
    recorded.call.inside = inside;
    recorded.call.first_run = {moment, moment};
    return static_cast<std::int64_t>(calls_.size()) - 1;
  }

  /// Its first run is over, and left this.
  void end_first_run(std::int64_t place, RecordedCall&& told) {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr) return;
    RecordedCall& recorded = at(place);
    const RegionCall before = std::move(recorded.call);
    recorded = std::move(told);
    recorded.call.region = before.region;
    recorded.call.number = before.number;
    recorded.call.inside = before.inside;
    recorded.call.first_run = {before.first_run.begin, now()};
    recorded.call.replays = before.replays;  // the body may have asked for some itself
  }

  /// A replay of the call begins. Gives its place among the call's.
  std::size_t begin_replay(std::int64_t place) {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr) return 0;
    settle({place});
    const auto id = std::this_thread::get_id();
    const auto thread = std::find(threads_.begin(), threads_.end(), id) - threads_.begin();
    if (thread == std::ssize(threads_)) threads_.push_back(id);
    std::vector<ReplayRun>& replays = at(place).call.replays;
    const double moment = now();
    replays.push_back({{moment, moment}, false, Bytes(0), thread});
    return replays.size() - 1;
  }
  void end_replay(std::int64_t place, std::size_t replay) {
    const std::lock_guard lock(mutex_);
    if (live_ != nullptr) at(place).call.replays[replay].time.end = now();
  }
  /// What a replay has done.
  void replayed(std::int64_t place, std::size_t replay, bool stopped_early, Bytes rebuilt) {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr) return;
    ReplayRun& run = at(place).call.replays[replay];
    run.stopped_early = stopped_early;
    run.rebuilt = rebuilt;
  }

  void backward_begins() override {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr || passes_++ > 0) return;
    settle_all();
    const double moment = now();
    backward_.push_back({moment, moment});
  }
  void backward_ends() override {
    const std::lock_guard lock(mutex_);
    if (live_ != nullptr && --passes_ == 0) backward_.back().end = now();
  }

  /// Ends the step, on the thread that made this.
  [[nodiscard]] Ledger end() {
    const std::lock_guard lock(mutex_);
    settle_all();
    Ledger ledger;
    ledger.seconds = now();
    live_->give(ledger);
    live_.reset();
    for (RecordedCall& recorded : calls_) ledger.calls.push_back(std::move(recorded.call));
    ledger.backward_passes = std::move(backward_);
    // What is there after the step was not its own.
    ledger.saved_outside = Bytes(waited_outside_.bytes_gone());
    return ledger;
  }

 private:
  [[nodiscard]] RecordedCall& at(std::int64_t place) {
    return calls_[static_cast<std::size_t>(place)];
  }

  [[nodiscard]] double now() {
    live_->look();
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  void settle_all() {
    std::vector<std::int64_t> all;
    for (; next_unsettled_ < std::ssize(calls_); ++next_unsettled_) all.push_back(next_unsettled_);
    settle(all);
    StorageSet waits = outside_.storages();
    waits.keep_if(
        [this](const void* address, bool alive) { return alive && !holders_.contains(address); });
    waited_outside_.add(waits);
  }

  /// Writes down what somebody holds by now, of calls of which that is not known yet.
  void settle(std::vector<std::int64_t> places) {
    std::erase_if(places, [this](std::int64_t place) { return at(place).settled; });
    for (const std::int64_t place : places) settle_kept(at(place));
    for (const std::int64_t place : places) settle_made(at(place));
  }

  void settle_kept(RecordedCall& recorded) {
    recorded.settled = true;
    for (const WatchedMemory& watched : recorded.kept) {
      KeptMemory kept{watched.why, watched.what, Bytes(0), {}, /*shared=*/false};
      bool shared = true;
      watched.memory.for_each([&](const void* address, std::int64_t bytes, bool alive) {
        if (!alive) return;
        kept.bytes += Bytes(bytes);
        const std::string what = watched.what.substr(0, watched.what.find(','));
        const bool first =
            holders_.try_emplace(address, fmt::format("`{}`, its {}", recorded.call.region, what))
                .second;
        shared = shared && !first;
      });
      kept.shared = shared;
      if (kept.bytes.count() > 0) recorded.call.kept.push_back(std::move(kept));
    }
    recorded.kept.clear();
  }

  void settle_made(RecordedCall& recorded) {
    using Why = KeptMemory::Why;
    const auto hold = [&](Why why, const void* address, std::int64_t bytes) {
      const auto known = holders_.find(address);
      std::string holder = "the caller or the region's own code";
      if (known != holders_.end()) {
        holder = known->second;
      } else if (outside_.storages().contains(address)) {
        holder = "autograd, outside all regions";
      } else {
        holders_.emplace(address, fmt::format("`{}`", recorded.call.region));
      }
      const bool shared = known != holders_.end() || outside_.storages().contains(address);
      std::vector<KeptMemory>& kept = recorded.call.kept;
      const auto same = std::find_if(kept.begin(), kept.end(), [&](const KeptMemory& memory) {
        return memory.why == why && memory.holder == holder && memory.shared == shared;
      });
      if (same == kept.end()) return kept.push_back({why, {}, Bytes(bytes), holder, shared});
      same->bytes += Bytes(bytes);
    };
    const std::string own = fmt::format("`{}`, its ", recorded.call.region);
    recorded.results.for_each([&](const void* address, std::int64_t bytes, bool alive) {
      if (alive) hold(Why::Output, address, bytes);
    });
    recorded.made.for_each([&](const void* address, std::int64_t bytes, bool alive) {
      if (!alive) {
        recorded.call.forgotten += Bytes(bytes);
      } else if (!recorded.results.contains(address)) {
        const auto known = holders_.find(address);
        const bool is_kept_by_itself = known != holders_.end() && known->second.starts_with(own);
        if (!is_kept_by_itself) hold(Why::Held, address, bytes);
      }
    });
    recorded.made = {};
    recorded.results = {};
  }

  const Values values_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::unique_ptr<LiveSamples> live_ =
      std::make_unique<LiveSamples>(start_);  ///< Null: it is over.
  SavedStorages outside_;
  StorageSet waited_outside_;  ///< What was there of that when a backward pass began.
  std::vector<RecordedCall> calls_;
  std::int64_t next_unsettled_ = 0;
  std::unordered_map<std::string, std::int64_t> numbers_;
  std::unordered_map<const void*, std::string> holders_;  ///< Of memory that calls keep.
  std::vector<std::thread::id> threads_{std::this_thread::get_id()};
  std::vector<TimeSpan> backward_;
  int passes_ = 0;  ///< That go on.
};

}  // namespace refrain::detail
