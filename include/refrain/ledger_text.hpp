// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/ledger.hpp>
#include <refrain/ledger_totals.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {
namespace detail {

inline constexpr double kMilli = 1e3;

/// "the replay of `blocks.3`", "the loss"
[[nodiscard]] inline std::string place_text(const Ledger& ledger, const MemoryPeak& place) {
  const auto region = [&] { return ledger.calls[static_cast<std::size_t>(place.call)].region; };
  switch (place.phase) {
    case Phase::Forward:
      return "the forward pass, outside all regions";
    case Phase::Region:
      return fmt::format("the first run of `{}`", region());
    case Phase::Loss:
      return "what follows the last region, the loss most likely";
    case Phase::Backward:
      return place.call < 0 ? std::string("the backward pass, before any replay")
                            : fmt::format("the backward pass, after the replay of `{}`", region());
    case Phase::Replay:
      return fmt::format("the replay of `{}`", region());
    case Phase::Rest:
      return "what follows the backward pass, the optimizer most likely";
  }
  return "";
}

/// "input 1.00 MiB, aten::mm 4.00 MiB": why the calls of one region keep what they keep, or what is
/// held of theirs.
[[nodiscard]] inline std::string why_text(const Ledger& ledger, std::string_view region) {
  struct Reason {
    std::string name;
    Bytes bytes;
  };
  std::vector<Reason> reasons;
  for (const RegionCall& call : ledger.calls) {
    if (call.region != region) continue;
    for (const KeptMemory& memory : call.kept) {
      if (memory.shared || memory.why == KeptMemory::Why::Output) continue;
      using Why = KeptMemory::Why;
      std::string name(to_string(memory.why));
      if (memory.why == Why::Operator || memory.why == Why::Name)
        name = memory.what.substr(0, memory.what.find(','));
      if (memory.why == Why::Held) name = "held by " + memory.holder;
      const auto known = std::find_if(reasons.begin(), reasons.end(),
                                      [&](const Reason& reason) { return reason.name == name; });
      if (known == reasons.end()) {
        reasons.push_back({std::move(name), memory.bytes});
      } else {
        known->bytes += memory.bytes;
      }
    }
  }
  std::string text;
  for (const Reason& reason : reasons)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", reason.name, reason.bytes);
  return text;
}

[[nodiscard]] inline std::int64_t depth_of(const Ledger& ledger, std::string_view region) {
  for (const RegionCall& call : ledger.calls) {
    if (call.region != region) continue;
    std::int64_t depth = 0;
    for (std::int64_t at = call.inside; at >= 0;
         at = ledger.calls[static_cast<std::size_t>(at)].inside) {
      ++depth;
    }
    return depth;
  }
  return 0;
}

/// A name as a CSV field.
[[nodiscard]] inline std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\n") == std::string_view::npos) return std::string(text);
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
  return field + '"';
}

}  // namespace detail

/// A table: where the peak is, a row a region (those inside another are indented), a row of sums.
[[nodiscard]] inline std::string to_string(const Ledger& ledger) {
  constexpr const char* kRow = "{:<{}}  {:>5}  {:>10}  {:>10}  {:>7}  {:>5}  {:>10}  {:>10}  {}\n";
  constexpr std::size_t kLongestName = 40;
  std::string text = fmt::format("one step of {:.2f} ms", ledger.seconds * detail::kMilli);
  if (const auto peak = ledger.peak()) {
    text += fmt::format("; {} at its peak{} on {}, at {:.2f} ms, in {}", peak->live,
                        ledger.whole ? "" : " beyond what lived before", ledger.device,
                        peak->seconds * detail::kMilli, detail::place_text(ledger, *peak));
  }
  text += '\n';
  std::vector<RegionTotal> rows = totals(ledger);
  RegionTotal sum{.region = "all"};
  std::size_t width = 6;
  for (RegionTotal& row : rows) {
    sum.calls += row.calls;
    sum.forgotten += row.forgotten;
    sum.keeps += row.keeps;
    sum.held += row.held;
    sum.replays += row.replays;
    sum.stopped_early += row.stopped_early;
    sum.replay_seconds += row.replay_seconds;
    sum.rebuilt_peak = std::max(sum.rebuilt_peak, row.rebuilt_peak);
    const auto indent = static_cast<std::size_t>(2 * detail::depth_of(ledger, row.region));
    width = std::max(width, std::min(kLongestName, row.region.size() + indent));
  }
  text += fmt::format(kRow, "region", width, "calls", "forgets", "keeps", "replays", "early",
                      "time", "rebuilt", "kept and held: why");
  const auto add = [&](const RegionTotal& row, const std::string& name, const std::string& why) {
    text += fmt::format(kRow, name, width, row.calls, fmt::to_string(row.forgotten),
                        fmt::to_string(row.keeps), row.replays, row.stopped_early,
                        fmt::format("{:.2f} ms", row.replay_seconds * detail::kMilli),
                        fmt::to_string(row.rebuilt_peak), why);
    while (text.size() > 1 && text[text.size() - 2] == ' ') text.erase(text.size() - 2, 1);
  };
  for (const RegionTotal& row : rows) {
    const auto indent = static_cast<std::size_t>(2 * detail::depth_of(ledger, row.region));
    add(row, (std::string(indent, ' ') + row.region).substr(0, kLongestName),
        detail::why_text(ledger, row.region));
  }
  add(sum, sum.region, "");
  for (const MoveTotal& moved : move_totals(ledger)) {
    text +=
        fmt::format("moved {} to {}, {} storages: forward waited {:.2f} ms, backward {:.2f} ms\n",
                    moved.bytes, moved.tier, moved.storages, moved.out_seconds * detail::kMilli,
                    moved.back_seconds * detail::kMilli);
  }
  const auto waiting = ledger.waiting();
  if (waiting)
    text += fmt::format("when backward began {} more lived than when the step did", *waiting);
  return text;
}

/// A row a call, with a head. Bytes are bytes, times are seconds.
[[nodiscard]] inline std::string to_csv(const Ledger& ledger) {
  using Why = KeptMemory::Why;
  constexpr Why kReasons[] = {Why::Input,  Why::Operator, Why::Name, Why::Buffer,
                              Why::Random, Why::Output,   Why::Held};
  std::string text =
      "region,number,inside,begin,first_run,tensors,saved,forgotten,kept_input,kept_operator,"
      "kept_name,kept_buffer,kept_random,output,held,replays,stopped_early,replay_time,"
      "rebuilt_peak\n";
  for (const RegionCall& call : ledger.calls) {
    RegionTotal total;
    total.add(call);
    text += fmt::format("{},{},{},{:.9f},{:.9f},{},{},{}", detail::csv_field(call.region),
                        call.number, call.inside, call.first_run.begin, call.first_run.seconds(),
                        call.tensors, call.saved.count(), call.forgotten.count());
    for (const Why why : kReasons) text += fmt::format(",{}", call.kept_for(why).count());
    text += fmt::format(",{},{},{:.9f},{}\n", total.replays, total.stopped_early,
                        total.replay_seconds, total.rebuilt_peak.count());
  }
  return text;
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::Ledger> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::Ledger& ledger, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(ledger), context);
  }
};
