// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/ledger.hpp>
#include <refrain/ledger_totals.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace refrain {

/// How one region's totals changed: those of a region that one of the steps lacks are zero there.
struct RegionChange {
  std::string region;
  RegionTotal before;
  RegionTotal after;

  [[nodiscard]] bool any() const {
    return before.calls != after.calls || before.forgotten != after.forgotten ||
           before.keeps != after.keeps || before.held != after.held ||
           before.replays != after.replays || before.rebuilt_peak != after.rebuilt_peak;
  }
};

/// What is other in one step than in another. See `diff`.
struct LedgerDiff {
  std::vector<RegionChange> regions;  ///< Those that changed in more than time.
  std::optional<Bytes> peak;          ///< After less before, where both were measured alike.
  std::optional<Bytes> waiting;       ///< The same of what lived when backward began.
  double seconds = 0;                 ///< After less before.
  double replay_seconds = 0;          ///< After less before.

  /// Whether nothing but times changed.
  [[nodiscard]] bool empty() const {
    return regions.empty() && (!waiting || waiting->count() == 0) && (!peak || peak->count() == 0);
  }
};

/// Compares two recorded steps: before and after a change of policy, say, or two builds.
///
///     auto before = refrain::record(step);
///     refrain::enable(*model, refrain::policy::one_in(2));
///     fmt::print("{}\n", refrain::diff(before, refrain::record(step)));
[[nodiscard]] inline LedgerDiff diff(const Ledger& before, const Ledger& after) {
  LedgerDiff diff;
  std::vector<RegionChange> changes;
  for (RegionTotal& total : totals(before)) {
    diff.replay_seconds -= total.replay_seconds;
    changes.push_back({total.region, total, {.region = total.region}});
  }
  for (const RegionTotal& total : totals(after)) {
    diff.replay_seconds += total.replay_seconds;
    const auto known =
        std::find_if(changes.begin(), changes.end(),
                     [&](const RegionChange& change) { return change.region == total.region; });
    if (known == changes.end()) {
      changes.push_back({total.region, {.region = total.region}, total});
    } else {
      known->after = total;
    }
  }
  for (RegionChange& change : changes) {
    if (change.any()) diff.regions.push_back(std::move(change));
  }
  const auto then = before.peak();
  const auto now = after.peak();
  if (then && now && before.whole == after.whole) diff.peak = now->live - then->live;
  if (before.waiting() && after.waiting()) diff.waiting = *after.waiting() - *before.waiting();
  diff.seconds = after.seconds - before.seconds;
  return diff;
}

/// "1.00 MiB -> 0 B" where something changed, else the one value.
[[nodiscard]] inline std::string to_string(const LedgerDiff& diff) {
  const auto signed_bytes = [](Bytes bytes) {
    return (bytes.count() > 0 ? "+" : "") + fmt::to_string(bytes);
  };
  constexpr double kMilli = 1e3;
  std::string text = "after less before:";
  if (diff.peak) text += fmt::format(" peak {},", signed_bytes(*diff.peak));
  if (diff.waiting) text += fmt::format(" when backward began {},", signed_bytes(*diff.waiting));
  text += fmt::format(" step {:+.2f} ms, replays {:+.2f} ms", diff.seconds * kMilli,
                      diff.replay_seconds * kMilli);
  if (diff.regions.empty()) return text + "\nno region changed in more than time";
  const auto pair = [](const auto& before, const auto& after) {
    return before == after ? fmt::format("{}", after) : fmt::format("{} -> {}", before, after);
  };
  constexpr const char* kRow = "\n{:<{}}  {:>10}  {:>24}  {:>24}  {:>10}  {:>24}";
  std::size_t width = 6;
  for (const RegionChange& change : diff.regions) width = std::max(width, change.region.size());
  text += fmt::format(kRow, "region", width, "calls", "forgets", "keeps", "replays", "rebuilt");
  for (const RegionChange& change : diff.regions) {
    const RegionTotal& before = change.before;
    const RegionTotal& after = change.after;
    text += fmt::format(kRow, change.region, width, pair(before.calls, after.calls),
                        pair(before.forgotten, after.forgotten), pair(before.keeps, after.keeps),
                        pair(before.replays, after.replays),
                        pair(before.rebuilt_peak, after.rebuilt_peak));
  }
  return text;
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::LedgerDiff> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::LedgerDiff& diff, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(diff), context);
  }
};
