// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/ledger.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace refrain::detail {

/// The number of segments that needs least, beside the one that a step has.
struct BestCut {
  std::int64_t stages = 0;
  std::int64_t segments = 0;
  std::int64_t best = 0;
  Bytes gain;  ///< About.
};

/// "layers[4,8)": 4; any other name: 1.
[[nodiscard]] inline std::int64_t stages_of(std::string_view region) {
  const std::size_t open = region.rfind('[');
  const std::size_t comma = region.rfind(',');
  if (!region.ends_with(')') || open == std::string_view::npos || comma == std::string_view::npos)
    return 1;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const char* const data = region.data();
  const auto first = std::from_chars(data + open + 1, data + comma, begin);
  const auto second = std::from_chars(data + comma + 1, data + region.size() - 1, end);
  const bool good = first.ec == std::errc() && second.ec == std::errc() && end > begin;
  return good ? end - begin : 1;
}

/// For regions that run one after the other and forget much alike; empty for others.
///
/// K segments keep K inputs of X bytes and rebuild one at a time of A bytes altogether:
/// K·X + A/K is least at K = √(A/X). Source: Chen et al. 2016, arXiv:1604.06174, section 4.
[[nodiscard]] inline std::optional<BestCut> best_cut(const Ledger& ledger) {
  BestCut cut;
  double inputs = 0;
  double forgotten = 0;
  double most = 0;
  for (const RegionCall& call : ledger.calls) {
    if (call.inside >= 0 || call.replays.empty()) continue;
    ++cut.segments;
    cut.stages += stages_of(call.region);
    inputs += static_cast<double>(call.kept_for(KeptMemory::Why::Input).count());
    forgotten += static_cast<double>(call.forgotten.count());
    most = std::max(most, static_cast<double>(call.forgotten.count()));
  }
  const auto now = static_cast<double>(cut.segments);
  if (cut.segments < 2 || inputs <= 0 || most > 2 * forgotten / now) return std::nullopt;
  const double input = inputs / now;
  const double best =
      std::clamp(std::round(std::sqrt(forgotten / input)), 1.0, static_cast<double>(cut.stages));
  const double gain = (inputs + forgotten / now) - (best * input + forgotten / best);
  cut.best = static_cast<std::int64_t>(best);
  cut.gain = Bytes(static_cast<std::int64_t>(gain));
  return cut;
}

}  // namespace refrain::detail
