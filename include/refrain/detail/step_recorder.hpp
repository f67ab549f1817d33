// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/live_samples.hpp>
#include <refrain/detail/recorded_call.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/storage_set.hpp>
#include <refrain/ledger.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

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

  /// A call of `region` begins, inside another or not (-1). Gives its place, or -1 if the step is
  /// over.
  std::int64_t begin_call(const std::string& region, std::int64_t inside) {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr) return -1;
    const double moment = now();
    RecordedCall& recorded = calls_.emplace_back();
    recorded.call.region = region;
    recorded.call.number = numbers_[region]++;
    recorded.call.inside = inside;
    recorded.call.first_run = {moment, moment};
    recorded.call.threw = true;  // until it has not
    return static_cast<std::int64_t>(calls_.size()) - 1;
  }

  /// The call gave a tensor with this history.
  void gave(std::int64_t place, const torch::autograd::Node* history) {
    if (history == nullptr) return;
    const std::lock_guard lock(mutex_);
    histories_[history] = {history->sequence_nr(), place};
  }
  /// The call whose result a few operators made the tensor of; -1: none, or it is that result.
  [[nodiscard]] std::int64_t source_of(const at::Tensor& tensor) {
    constexpr std::size_t kFew = 16;
    const torch::autograd::Node* const history = tensor.grad_fn().get();
    const std::lock_guard lock(mutex_);
    if (history == nullptr || given_by(history) >= 0) return -1;
    std::vector<const torch::autograd::Node*> seen{history};
    for (std::size_t i = 0; i < seen.size() && seen.size() < kFew; ++i) {
      for (const auto& edge : seen[i]->next_edges()) {
        const torch::autograd::Node* const node = edge.function.get();
        if (node == nullptr || std::find(seen.begin(), seen.end(), node) != seen.end()) continue;
        if (const std::int64_t place = given_by(node); place >= 0) return place;
        seen.push_back(node);
      }
    }
    return -1;
  }

  /// Its first run is over, and left this.
  void end_first_run(std::int64_t place, RecordedCall&& told) {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr) return;
    RecordedCall& recorded = at(place);
    const RegionCall before = std::move(recorded.call);
    const bool replayed = recorded.replayed;  // the body may have asked for that itself
    recorded = std::move(told);
    recorded.call.region = before.region;
    recorded.call.number = before.number;
    recorded.call.inside = before.inside;
    recorded.call.first_run = {before.first_run.begin, now()};
    recorded.call.replays = before.replays;
    recorded.ended = true;
    if (!replayed) return;
    settle();
    recorded.replayed = true;
  }

  /// A replay of the call begins. Gives its place among the call's.
  std::size_t begin_replay(std::int64_t place) {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr) return 0;
    RecordedCall& recorded = at(place);
    if (!recorded.replayed && !recorded.settled) settle();
    recorded.replayed = true;
    const auto id = std::this_thread::get_id();
    const auto thread = std::find(threads_.begin(), threads_.end(), id) - threads_.begin();
    if (thread == std::ssize(threads_)) threads_.push_back(id);
    std::vector<ReplayRun>& replays = recorded.call.replays;
    const double moment = now();
    replays.push_back({{moment, moment}, false, Bytes(0), thread});
    return replays.size() - 1;
  }
  void end_replay(std::int64_t place, std::size_t replay) {
    const std::lock_guard lock(mutex_);
    if (live_ != nullptr && replay < at(place).call.replays.size())
      at(place).call.replays[replay].time.end = now();
  }
  /// What a replay has done.
  void replayed(std::int64_t place, std::size_t replay, bool stopped_early, Bytes rebuilt) {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr || replay >= at(place).call.replays.size()) return;
    ReplayRun& run = at(place).call.replays[replay];
    run.stopped_early = stopped_early;
    run.rebuilt = rebuilt;
  }

  /// Seconds since the step began.
  [[nodiscard]] double moment() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  /// Something went to a tier. Gives its place, or -1 if the step is over.
  std::int64_t moved(MovedMemory memory) {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr) return -1;
    live_->look();
    moved_.push_back(std::move(memory));
    return static_cast<std::int64_t>(moved_.size()) - 1;
  }
  void came_back(std::int64_t place, TimeSpan wait) {
    const std::lock_guard lock(mutex_);
    if (live_ != nullptr && place >= 0)
      moved_[static_cast<std::size_t>(place)].back.push_back(wait);
  }

  /// The step that the calling thread records, or null.
  [[nodiscard]] static const std::shared_ptr<StepRecorder>& current() {
    static const std::shared_ptr<StepRecorder> none;
    return current_ == nullptr ? none : *current_;
  }
  /// While it lives.
  class Scope {
   public:
    explicit Scope(const std::shared_ptr<StepRecorder>* step)
        : before_(std::exchange(current_, step)) {}
    ~Scope() { current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const std::shared_ptr<StepRecorder>* before_;
  };

  void backward_begins() override {
    const std::lock_guard lock(mutex_);
    if (live_ == nullptr || passes_++ > 0) return;
    settle();
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
    const bool all_settled = std::all_of(calls_.begin(), calls_.end(), [](const auto& recorded) {
      return recorded.settled || !recorded.ended;
    });
    if (!all_settled) settle();
    Ledger ledger;
    ledger.seconds = now();
    live_->give(ledger);
    live_.reset();
    for (RecordedCall& recorded : calls_) ledger.calls.push_back(std::move(recorded.call));
    calls_.clear();
    ledger.moved = std::move(moved_);
    ledger.backward_passes = std::move(backward_);
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

  /// Writes down what somebody holds by now, of calls that were not replayed yet: a backward pass
  /// before may have been about something else.
  void settle() {
    std::vector<RecordedCall*> open;
    for (RecordedCall& recorded : calls_) {
      if (recorded.ended && !recorded.replayed) open.push_back(&recorded);
    }
    Holders holders;
    for (RecordedCall* const recorded : open) settle_kept(*recorded, holders);
    for (RecordedCall* const recorded : open) settle_made(*recorded, holders);
  }

  using Holders = std::unordered_map<const void*, std::string>;  ///< Of memory that calls keep.

  static void settle_kept(RecordedCall& recorded, Holders& holders) {
    recorded.settled = true;
    recorded.call.kept = recorded.kept_anyway;
    for (const WatchedMemory& watched : recorded.kept) {
      KeptMemory kept{watched.why, watched.what, Bytes(0), {}, /*shared=*/true, watched.made_from};
      const std::string what = watched.what.substr(0, watched.what.find(','));
      watched.memory.for_each([&](const void* address, std::int64_t bytes, bool alive) {
        if (!alive) return;
        kept.bytes += Bytes(bytes);
        const auto [known, first] =
            holders.try_emplace(address, fmt::format("`{}`, its {}", recorded.call.region, what));
        if (first) kept.shared = false;
      });
      if (kept.bytes.count() > 0) recorded.call.kept.push_back(std::move(kept));
    }
  }

  static void settle_made(RecordedCall& recorded, Holders& holders) {
    using Why = KeptMemory::Why;
    const auto hold = [&](Why why, const void* address, std::int64_t bytes) {
      const auto inserted = holders.try_emplace(address, fmt::format("`{}`", recorded.call.region));
      const auto known = inserted.first;
      const bool first = inserted.second;  // no structured binding: a lambda below captures it
      const std::string holder =
          first ? "autograd outside all regions, or other code" : known->second;
      std::vector<KeptMemory>& kept = recorded.call.kept;
      const auto same = std::find_if(kept.begin(), kept.end(), [&](const KeptMemory& memory) {
        return memory.why == why && memory.holder == holder && memory.shared != first;
      });
      if (same == kept.end()) return kept.push_back({why, {}, Bytes(bytes), holder, !first});
      same->bytes += Bytes(bytes);
    };
    const std::string own = fmt::format("`{}`, its ", recorded.call.region);
    recorded.results.for_each([&](const void* address, std::int64_t bytes, bool alive) {
      if (alive) hold(Why::Output, address, bytes);
    });
    recorded.call.forgotten = Bytes(0);
    recorded.made.for_each([&](const void* address, std::int64_t bytes, bool alive) {
      if (!alive) {
        recorded.call.forgotten += Bytes(bytes);
      } else if (!recorded.results.contains(address)) {
        const auto known = holders.find(address);
        const bool is_kept_by_itself = known != holders.end() && known->second.starts_with(own);
        if (!is_kept_by_itself) hold(Why::Held, address, bytes);
      }
    });
  }

  /// A node's address may have been another's before.
  [[nodiscard]] std::int64_t given_by(const torch::autograd::Node* node) const {
    const auto found = histories_.find(node);
    const bool is_it = found != histories_.end() && found->second.number == node->sequence_nr();
    return is_it ? found->second.place : -1;
  }
  struct Given {
    std::uint64_t number;
    std::int64_t place;
  };

  static inline constinit thread_local const std::shared_ptr<StepRecorder>* current_ = nullptr;

  const Values values_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::unique_ptr<LiveSamples> live_ =
      std::make_unique<LiveSamples>(start_);  ///< Null: it is over.
  std::vector<RecordedCall> calls_;
  std::unordered_map<std::string, std::int64_t> numbers_;
  std::unordered_map<const torch::autograd::Node*, Given> histories_;  ///< Of what calls gave.
  std::vector<std::thread::id> threads_{std::this_thread::get_id()};
  std::vector<MovedMemory> moved_;
  std::vector<TimeSpan> backward_;
  int passes_ = 0;  ///< That go on.
};

}  // namespace refrain::detail
