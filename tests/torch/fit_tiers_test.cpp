// SPDX-License-Identifier: BSD-3-Clause
#include "support/budgets.hpp"
#include "support/messages.hpp"
#include "support/seeded.hpp"
#include "support/stacks.hpp"
#include <refrain/fit.hpp>
#include <refrain/ledger_totals.hpp>
#include <refrain/measure_links.hpp>
#include <refrain/memory.hpp>
#include <refrain/record.hpp>
#include <refrain/tier/arena.hpp>
#include <refrain/tier/counted.hpp>
#include <refrain/tier/disk.hpp>
#include <refrain/tier/host.hpp>
#include <refrain/tier/limited.hpp>
#include <refrain/tier/some.hpp>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace {

using refrain::AnyTier;
using refrain::Bytes;
using refrain::Profile;
using refrain::ProfileOptions;
using support::budget_between;
using torch::Tensor;
namespace tier = refrain::tier;

class FitWithTiers : public support::Seeded {
 protected:
  /// All but what it took last has left memory.
  static AnyTier disk() {
    return tier::disk(std::filesystem::temp_directory_path().string(), {.on_the_way = Bytes(0)});
  }

  static ProfileOptions quick() {
    return ProfileOptions().repeats(1).seconds(0).loss(
        [](const Tensor& y) { return y.square().mean(); });
  }
  static std::vector<support::TransformerBlock> blocks() {
    std::vector<support::TransformerBlock> layers;
    for (int i = 0; i < 8; ++i) layers.emplace_back(32, 2, 0.0);
    return layers;
  }
  /// So fast that a plan moves rather than replays.
  static refrain::Links fast() {
    return {.tier = "fast", .out = 1e13, .back = 1e13, .in_flight = Bytes(0)};
  }
  static Tensor input() { return torch::randn({8, 64, 32}); }
};

TEST_F(FitWithTiers, MeasuresTheLinks) {
  const auto links = refrain::measure_links(disk());
  EXPECT_THAT(links.tier, testing::StartsWith("disk("));
  EXPECT_GT(links.out, 1e7);
  EXPECT_GT(links.back, 1e7);
  EXPECT_GT(links.latency, 0);
  EXPECT_FALSE(refrain::measure_links(tier::host()).usable()) << "on the host nothing is freed";
  const auto disk =
      tier::disk(std::filesystem::temp_directory_path().string(), {.on_the_way = Bytes(12345)});
  EXPECT_EQ(refrain::measure_links(disk).in_flight, Bytes(12345));
}

TEST_F(FitWithTiers, KeepsItsWordAndIsNoSlowerThanReplaysAlone) {
  auto layers = blocks();
  const auto x = input();
  const Profile profile = refrain::profile(quick(), layers, x);
  EXPECT_LE(refrain::least_budget(profile, {fast()}), refrain::least_budget(profile));
  for (const double share : {0.0, 0.2, 0.5, 0.8}) {
    const Bytes budget = budget_between(profile, share);
    const auto waits = tier::counted(disk());
    auto fitted = refrain::fit(quick().tiers({waits}), layers, budget, x);
    EXPECT_LE(fitted.measured_peak(), budget) << share;
    // What is read from a disk lies in whole pages, and one more.
    EXPECT_LE(fitted.measured_peak(), fitted.plan().predicted_peak() + Bytes(64 << 10)) << share;
    EXPECT_EQ(waits.counts().held, 0);
    const auto with = refrain::plan(profile, budget, {fast()});
    EXPECT_LE(with.predicted_seconds(), refrain::plan(profile, budget).predicted_seconds());
  }
}

TEST_F(FitWithTiers, ChangesNothingButMemory) {
  auto layers = blocks();
  const auto x = input();
  const Profile profile = refrain::profile(quick(), layers, x);
  const auto plan = refrain::plan(profile, budget_between(profile, 0.3), {fast()});
  EXPECT_GT(plan.cost().moved.at(0), 0);
  auto fitted = refrain::checkpoint(layers, plan, refrain::CheckpointOptions().tiers({disk()}));
  const auto gradients = [&](auto&& run) {
    torch::manual_seed(5);
    for (auto& layer : layers) layer->zero_grad();
    run().square().mean().backward();
    std::vector<Tensor> all;
    for (const auto& layer : layers) {
      for (const auto& p : layer->parameters()) all.push_back(p.grad().clone());
    }
    return all;
  };
  const auto moved = gradients([&] { return fitted(x); });
  const auto plain = gradients([&] {
    Tensor h = x;
    for (auto& layer : layers) h = layer(h);
    return h;
  });
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(moved[i], plain[i])) << i;
}

TEST_F(FitWithTiers, MovesAsManyBytesAsThePlanSays) {
  auto layers = blocks();
  const auto x = input();
  const Profile profile = refrain::profile(quick(), layers, x);
  const auto plan = refrain::plan(profile, budget_between(profile, 0.3), {fast()});
  const auto waits = tier::counted(disk());
  auto chain = refrain::checkpoint(layers, plan, refrain::CheckpointOptions().tiers({waits}));
  const auto ledger = refrain::record([&] { chain(x).square().mean().backward(); });
  Bytes moved;
  for (const auto& total : refrain::move_totals(ledger)) moved += total.bytes;
  EXPECT_EQ(moved, waits.counts().bytes_moved);
  EXPECT_NEAR(moved / Bytes(plan.cost().moved.at(0)), 1, 0.02);
}

TEST_F(FitWithTiers, LinksSayWhatATierHolds) {
  const Bytes room(std::int64_t{1} << 20);
  EXPECT_EQ(refrain::measure_links(tier::counted(tier::arena(room))).capacity, room);
  EXPECT_EQ(refrain::measure_links(tier::limited(tier::arena(room * 4), room)).capacity, room);
  EXPECT_EQ(refrain::measure_links(tier::limited(disk(), room, disk())).capacity, room);
  EXPECT_TRUE(refrain::measure_links(tier::at_least(disk(), Bytes(64 << 10))).usable());
  EXPECT_FALSE(refrain::measure_links(tier::arena(Bytes(4096))).usable());
}

TEST_F(FitWithTiers, APlanThatATierHasNoRoomForIsMadeAnew) {
  auto layers = blocks();
  const auto x = input();
  const Profile profile = refrain::profile(quick(), layers, x);
  const Bytes budget = budget_between(profile, 0.3);
  auto links = fast();
  links.capacity = Bytes(refrain::plan(profile, budget, {links}).cost().moved.at(0));
  const Bytes room = links.capacity - Bytes(1);  // the tier itself takes some
  const auto measure = [&](const refrain::Plan& plan) {
    refrain::detail::MeasuredStep step{plan.predicted_peak()};
    if (!plan.tiers().empty() && plan.cost().moved.at(0) > room.count())
      step.refused = std::make_exception_ptr(refrain::TierError("no room"));
    return step;
  };
  const auto fitted = refrain::detail::measured_plan(profile, budget, {links}, measure);
  EXPECT_LE(fitted.peak, budget);
  EXPECT_GT(fitted.plan.cost().moved.at(0), 0);
  EXPECT_LE(fitted.plan.cost().moved.at(0), room.count());
  EXPECT_THROW((void)refrain::detail::measured_plan(profile, budget, {fast()}, measure),
               refrain::TierError)
      << "less room would not help";
  const auto refuses = [](const refrain::Plan& plan) {
    return refrain::detail::MeasuredStep{plan.predicted_peak(),
                                         std::make_exception_ptr(refrain::TierError("no room"))};
  };
  EXPECT_THROW((void)refrain::detail::measured_plan(
                   profile, refrain::least_budget(profile, {links}), {links}, refuses),
               refrain::TierError);
}

/// Saves its result, and so does the next one.
struct Thin {
  torch::nn::Linear linear{256, 256};
  Tensor operator()(const Tensor& x) { return torch::relu(linear(x)); }
};

/// An arena that cannot give back what has so many bytes.
struct Torn {
  Bytes lost;
  AnyTier upstream = tier::arena(Bytes(32 << 20));

  struct Item final : refrain::TierItem {
    Tensor get() override { throw refrain::TierError("the tape is torn."); }
  };
  [[nodiscard]] std::unique_ptr<refrain::TierItem> take(const Tensor& contents) const {
    if (Bytes(contents.nbytes()) == lost) return std::make_unique<Item>();
    return upstream.take(contents);
  }
  [[nodiscard]] Bytes capacity() const { return upstream.capacity(); }
  [[nodiscard]] std::string describe() const { return "torn"; }
};

TEST_F(FitWithTiers, MovesWhatIsDearToReplayAndTellsWhatATierCannotGiveBack) {
  Thin thin;
  thin.linear = torch::nn::Linear(512, 512);  // a forward takes far longer than moving its input
  const std::vector<Thin> layers(6, thin);
  const auto x = torch::randn({1024, 512});
  const auto waits = tier::counted(tier::arena(Bytes(32 << 20)));
  const Bytes budget = budget_between(refrain::profile(quick(), layers, x), 0.5);
  auto fitted = refrain::fit(quick().tiers({waits}), layers, budget, x);
  EXPECT_LE(fitted.measured_peak(), budget);
  EXPECT_GT(fitted.plan().cost().moved.at(0), 0);
  EXPECT_LE(waits.counts().most_held, waits.capacity());

  const Torn torn{Bytes(x.nbytes())};
  support::expect_says<refrain::TierError>({"the tape is torn", "asked for 2097152 bytes"}, [&] {
    (void)refrain::fit(quick().tiers({torn}), layers, budget + Bytes(32 << 20), x);
  });
}

TEST_F(FitWithTiers, WhatStagesOfTwoTiersShareStaysAndIsPlannedSo) {
  std::vector<Thin> layers(6);
  const auto x = torch::randn({2048, 256});
  const std::vector<AnyTier> tiers = {tier::arena(Bytes(32 << 20)), tier::arena(Bytes(33 << 20))};
  const Profile profile = refrain::profile(quick(), layers, x);
  std::vector<refrain::SegmentNode> nodes;
  for (std::int64_t i = 0; i < 5; ++i) nodes.push_back({{i, i + 1}, false, {}, 0, 1 + i % 2});
  nodes.push_back({{5, 6}});
  const refrain::Plan plan(profile, {6, nodes}, Bytes(1 << 30), {fast(), fast()});
  auto chain = refrain::checkpoint(layers, plan, refrain::CheckpointOptions().tiers(tiers));
  const auto loss = [](const Tensor& y) { return y.square().mean(); };
  for (int i = 0; i < 2; ++i) {
    for (auto& layer : layers) layer.linear->zero_grad();
    refrain::reset_peak();
    loss(chain(x)).backward();
  }
  EXPECT_LE(refrain::memory().peak, plan.predicted_peak());
}

TEST_F(FitWithTiers, APlanWantsItsTiers) {
  auto layers = blocks();
  const auto x = input();
  const Profile profile = refrain::profile(quick(), layers, x);
  const auto plan = refrain::plan(profile, budget_between(profile, 0.3), {fast()});
  support::expect_says<refrain::PlanError>(
      {"to tier 1, of 0 that are given", "CheckpointOptions().tiers"},
      [&] { refrain::checkpoint(layers, plan)(x); });
}

}  // namespace
