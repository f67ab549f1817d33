// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/ledger.hpp>
#include <refrain/segment.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace refrain::detail {

/// The number of segments that needs least, beside the one that a step has.
struct BestCut {
  std::int64_t stages = 0;    ///< With those of a last segment that is left plain.
  std::int64_t segments = 0;  ///< The same.
  std::int64_t best = 0;
  Bytes gain;             ///< About.
  bool is_chain = false;  ///< Its regions are segments of one chain, which a policy cuts.
};

/// The range of "layers[4,8)"; empty for any other name.
[[nodiscard]] inline std::optional<Segment> range_of(std::string_view region) {
  const std::size_t open = region.rfind('[');
  const std::size_t comma = region.rfind(',');
  if (!region.ends_with(')') || open == std::string_view::npos || comma == std::string_view::npos)
    return std::nullopt;
  Segment range;
  const char* const data = region.data();
  const auto first = std::from_chars(data + open + 1, data + comma, range.begin);
  const auto second = std::from_chars(data + comma + 1, data + region.size() - 1, range.end);
  if (first.ec != std::errc() || second.ec != std::errc() || range.end <= range.begin)
    return std::nullopt;
  return range;
}

/// For regions that run one after the other in one forward pass and forget much alike; empty for
/// others.
///
/// K segments of n stages, of which the last is plain, keep K - 1 inputs of X bytes, and one of
/// them at a time is there as a whole: ceil(n/K) stages of T/n bytes, T all activations, with what
/// segments begin with. Source: Chen et al. 2016, arXiv:1604.06174, section 4, with whole stages.
[[nodiscard]] inline std::optional<BestCut> best_cut(const Ledger& ledger) {
  std::int64_t replayed = 0;
  std::int64_t stages = 0;
  std::int64_t longest = 0;
  std::int64_t ranges = 0;
  double inputs = 0;
  double forgotten = 0;
  double most = 0;
  for (const RegionCall& call : ledger.calls) {
    if (call.inside >= 0 || call.replays.empty()) continue;
    if (call.number > 0) return std::nullopt;  // several forward passes
    const auto range = range_of(call.region);
    const std::int64_t length = range ? range->end - range->begin : 1;
    ++replayed;
    ranges += range ? 1 : 0;
    stages += length;
    longest = std::max(longest, length);
    inputs += static_cast<double>(call.kept_for(KeptMemory::Why::Input).count());
    forgotten += static_cast<double>(call.forgotten.count());
    most = std::max(most, static_cast<double>(call.forgotten.count()));
  }
  const auto count = static_cast<double>(replayed);
  if (replayed < 2 || inputs <= 0 || most > 2 * forgotten / count) return std::nullopt;
  const double input = inputs / count;
  const double stage = (forgotten + inputs) / static_cast<double>(stages);
  const auto peak = [&](std::int64_t segments, std::int64_t length) {
    return static_cast<double>(segments - 1) * input + static_cast<double>(length) * stage;
  };
  BestCut cut{.stages = stages + longest,
              .segments = replayed + 1,
              .best = replayed + 1,
              .gain = Bytes(0),
              .is_chain = ranges == replayed};
  const double now = peak(cut.segments, longest);
  double least = now;
  const std::int64_t limit = cut.is_chain ? cut.stages : replayed;
  for (std::int64_t segments = 2; segments <= limit; ++segments) {
    const std::int64_t length = (cut.stages + segments - 1) / segments;
    if (peak(segments, length) >= least) continue;
    least = peak(segments, length);
    cut.best = segments;
  }
  cut.gain = Bytes(static_cast<std::int64_t>(now - least));
  return cut;
}

}  // namespace refrain::detail
