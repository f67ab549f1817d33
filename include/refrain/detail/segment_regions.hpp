// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/first_call.hpp>
#include <refrain/detail/move_line.hpp>
#include <refrain/detail/region.hpp>
#include <refrain/error.hpp>
#include <refrain/options.hpp>
#include <refrain/policy/ops.hpp>
#include <refrain/segment.hpp>
#include <refrain/tier.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Of a region that stands for an option: it keeps what the policy says, and moves nothing.
[[nodiscard]] inline CheckpointOptions for_option(CheckpointOptions options,
                                                  const policy::OpPolicy& policy) {
  return options.keep(policy).tier(AnyTier(), options.tier().smallest);
}

[[nodiscard]] inline CheckpointOptions options_for_option(const SegmentNode& node,
                                                          const CheckpointOptions& options) {
  const auto count = static_cast<std::int64_t>(options.keeps().size());
  if (node.option > count) {
    throw PlanError(fmt::format("a plan runs {} in option {}, of {} that are given.",
                                to_string(node.range), node.option, count),
                    "give it all operator policies, in the order they were profiled in: "
                    "CheckpointOptions().keeps({...}).");
  }
  return for_option(options, options.keeps()[static_cast<std::size_t>(node.option - 1)]);
}

/// Throws `PlanError` if the plan was made for other operator policies than are given.
inline void check_keeps(const Segmentation& cut, const CheckpointOptions& options) {
  const std::size_t count = std::min(cut.keeps().size(), options.keeps().size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& given = options.keeps()[i].describe();
    if (cut.keeps()[i] == given) continue;
    throw PlanError(
        fmt::format("option {} of a plan was profiled as {}, and {} is given.", i + 1,
                    cut.keeps()[i], given),
        "give it the profile's operator policies, in its order: CheckpointOptions().keeps({...}).");
  }
}

/// What one piece of a cut chain asks for: a plan names its tier, or what it keeps.
[[nodiscard]] inline CheckpointOptions options_for(const SegmentNode& node,
                                                   CheckpointOptions options) {
  if (node.option != 0) return options_for_option(node, options);
  const auto count = static_cast<std::int64_t>(options.tiers().size());
  if (node.tier > count) {
    throw PlanError(fmt::format("a plan moves what {} keeps to tier {}, of {} that are given.",
                                to_string(node.range), node.tier, count),
                    "give it all of them, in the order they were planned in: "
                    "CheckpointOptions().tiers({...}).");
  }
  if (count > 0) {
    const Bytes smallest = options.tier().smallest;
    options.tier(
        node.tier == 0 ? AnyTier() : options.tiers()[static_cast<std::size_t>(node.tier - 1)],
        smallest);
  }
  if (!node.replayed) options.saved(Saved::Moved);
  return options;
}

/// One piece of a cut chain, ready to be called.
struct SegmentRegion {
  Segment range;
  std::shared_ptr<const RegionSettings> settings;  ///< Null: runs plainly.
  std::deque<SegmentRegion> inside;
  std::atomic<bool> called = false;

  SegmentRegion(const SegmentNode& node, const std::string& chain, const CheckpointOptions& options)
      : range(node.range) {
    if (node.replayed || node.tier != 0 || node.option != 0) {
      settings = std::make_shared<RegionSettings>(
          RegionSettings{options_for(node, options), fmt::format("{}{}", chain, node.range)});
    }
    for (const SegmentNode& child : node.inside) inside.emplace_back(child, chain, options);
  }
};

using SegmentRegions = std::deque<SegmentRegion>;

[[nodiscard]] inline std::shared_ptr<SegmentRegions> make_regions(
    const Segmentation& cut, const std::string& chain, const CheckpointOptions& options) {
  check_keeps(cut, options);
  auto regions = std::make_shared<SegmentRegions>();
  for (const SegmentNode& node : cut) {
    if (node.replayed || node.option != 0 || node.tier == 0) {
      regions->emplace_back(node, chain, options);
      continue;
    }
    // Each stage by itself: what it saves is moved when the next one begins.
    for (std::int64_t i = node.range.begin; i < node.range.end; ++i) {
      SegmentNode stage = node;
      stage.range = {i, i + 1};
      regions->emplace_back(stage, chain, options);
    }
  }
  return regions;
}

/// Runs a chain in its segments. `Chain` says how one stage is called, how many tensors a range of
/// modules owns, and what a replay of a range calls:
///
///     value = chain.run(i, std::move(value), extras...);
///     std::size_t n = chain.count_tensors(segment);
///     Chain later = chain.kept(segment);
///
/// `Chain` is cheap to copy and shares its stages: each region keeps one. `Value` is what goes from
/// stage to stage.
template <class Chain, class Value>
class SegmentRunner {
 public:
  template <class... Extras>
  static Value run(const Chain& chain, SegmentRegions& regions, Value value,
                   const Extras&... extras) {
    bool moves = false;
    for (SegmentRegion& region : regions) {
      value = run_one(chain, region, std::move(value), extras...);
      moves = moves || (region.settings != nullptr && region.settings->options.tier());
      if (moves && regions_are_on()) MoveLine::current()->move_what_waits();
    }
    return value;
  }

 private:
  /// What a segment's region calls: its stages, or the segments it is cut into itself.
  struct Callee {
    Chain chain;
    std::shared_ptr<SegmentRegion> region;

    template <class... Extras>
    Value operator()(Value value, const Extras&... extras) {
      if (!region->inside.empty()) return run(chain, region->inside, std::move(value), extras...);
      return run_plainly(chain, region->range, std::move(value), extras...);
    }
    [[nodiscard]] Callee kept() const { return {chain.kept(region->range), region}; }
    [[nodiscard]] Callee for_replay() const { return kept(); }
  };

  template <class... Extras>
  static Value run_plainly(const Chain& chain, Segment range, Value value,
                           const Extras&... extras) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      value = chain.run(static_cast<std::size_t>(i), std::move(value), extras...);
    }
    return value;
  }

  template <class... Extras>
  static Value run_one(const Chain& chain, SegmentRegion& region, Value value,
                       const Extras&... extras) {
    if (region.settings == nullptr || !regions_are_on()) {
      return run_plainly(chain, region.range, std::move(value), extras...);
    }
    const FirstCall first(region.called, [&] { return chain.count_tensors(region.range); }, [] {});
    // The frame may outlive the chain's owner; the chain owns the regions too.
    Callee callee{chain, std::shared_ptr<SegmentRegion>(chain.owner(), &region)};
    return call_region(region.settings, std::move(callee), first.watch(), std::move(value),
                       extras...);
  }
};

}  // namespace refrain::detail
