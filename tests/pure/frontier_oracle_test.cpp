// SPDX-License-Identifier: BSD-3-Clause
#include "support/oracles.hpp"
#include "support/programs.hpp"
#include <refrain/planner/binomial.hpp>
#include <refrain/planner/frontier.hpp>
#include <refrain/schedule.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using nlohmann::json;
using refrain::ChainCost;
using refrain::Executor;
using refrain::SegmentNode;
using refrain::planner::Frontier;
using support::Additive;
using support::equal_chain;
using Points = std::vector<Frontier::Point>;

const json& planner() {
  static const json values = support::oracle("planner.json");
  return values;
}

Executor executor_of(const std::string& model) {
  return model.starts_with("flat") ? Executor::Flat : Executor::Nested;
}

double value_at(const Points& points, std::int64_t budget) {
  double seconds = std::numeric_limits<double>::infinity();
  for (const auto& point : points) {
    if (point.peak <= budget) seconds = point.seconds;
  }
  return seconds;
}

/// The lower left staircase of all plans.
Points best_of_all(const ChainCost& chain, Executor executor) {
  Points all;
  for (const auto& plan : support::Programs(chain).all()) {
    const auto cost = refrain::simulate(plan, chain, executor);
    all.push_back({cost.peak, cost.seconds});
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.peak != b.peak ? a.peak < b.peak : a.seconds < b.seconds;
  });
  Points best;
  for (const auto& point : all) {
    if (best.empty() || point.seconds < best.back().seconds) best.push_back(point);
  }
  return best;
}

TEST(PlannerOracle, CountsAllPrograms) {
  const auto& counts = planner()["program_counts"];
  for (std::size_t i = 0; i < counts["items"].size(); ++i) {
    const auto items = counts["items"][i].get<std::size_t>();
    const auto plans = support::Programs(equal_chain(items - 1, 1)).all();
    EXPECT_EQ(plans.size(), counts["count"][i]) << items;
  }
}

TEST(PlannerOracle, UnevenChainsHaveTheirFrontiers) {
  for (const json& chain : planner()["heterogeneous"]) {
    for (const auto& [model, steps] : chain["pareto"].items()) {
      const bool early_stop = model.ends_with("early");
      const Frontier frontier(Additive::of(chain, early_stop).chain(), executor_of(model));
      Points expected;
      for (const json& step : steps) expected.push_back({step[0], step[1]});
      EXPECT_EQ(frontier.points(), expected) << chain["id"] << " " << model;
    }
    for (const json& budget : chain["budgets"]) {
      for (const auto* const model : {"flat", "edge", "flat_early", "edge_early"}) {
        const bool early_stop = std::string(model).ends_with("early");
        const Frontier frontier(Additive::of(chain, early_stop).chain(), executor_of(model));
        const double infinite = std::numeric_limits<double>::infinity();
        const double expected = budget[model].is_null() ? infinite : budget[model].get<double>();
        EXPECT_EQ(value_at(frontier.points(), budget["budget"]), expected)
            << budget << " " << model;
      }
    }
  }
}

TEST(PlannerOracle, EqualStagesHaveTheirFrontiers) {
  for (const json& data : planner()["rotor_homogeneous"]["data"]) {
    for (const auto& [stages, steps] : data["breakpoints"].items()) {
      const std::size_t n = std::stoul(stages);
      const Points points =
          Frontier(equal_chain(n, data["a"]), executor_of(data["model"])).points();
      Points expected;
      for (const json& step : steps)
        expected.push_back({step[0], step[1].get<double>() + static_cast<double>(n)});
      EXPECT_EQ(points, expected) << data["a"] << " " << data["model"] << " " << stages;
    }
    for (const auto& [stages, extra] : data["slots_table"].items()) {
      const std::size_t n = std::stoul(stages);
      const Points points =
          Frontier(equal_chain(n, data["a"]), executor_of(data["model"])).points();
      for (std::size_t s = 0; s < extra.size(); ++s) {
        const double expected = extra[s].is_null()
                                    ? std::numeric_limits<double>::infinity()
                                    : extra[s].get<double>() + static_cast<double>(n);
        const auto budget = data["a"].get<std::int64_t>() + 4 + static_cast<std::int64_t>(s);
        EXPECT_EQ(value_at(points, budget), expected) << stages << " " << budget;
      }
    }
  }
}

TEST(PlannerOracle, TheLeastPeakOfEqualStages) {
  for (const json& data : planner()["min_memory"]["data"]) {
    const auto chain = equal_chain(data["N"], data["a"]);
    EXPECT_EQ(Frontier(chain, Executor::Flat).points().front().peak, data["flat"]) << data;
    EXPECT_EQ(Frontier(chain, Executor::Nested).points().front().peak, data["edge"]) << data;
  }
}

TEST(PlannerOracle, AModelOf34StagesIsPlannedExactly) {
  const json& model = planner()["transformer_like_34"];
  for (const auto* const name : {"flat", "edge"}) {
    const Points points = Frontier(Additive::of(model, false).chain(), executor_of(name)).points();
    for (const json& step : model[name]) {
      const std::int64_t budget = step[0];
      EXPECT_EQ(value_at(points, budget), step[1].get<double>()) << name << " " << budget;
      EXPECT_GT(value_at(points, budget - 1), step[1].get<double>()) << name << " " << budget;
    }
    EXPECT_EQ(points.back().seconds, model["no_ckpt_time"].get<double>());
  }
}

/// `plain` runs plainly, the other segments are replayed.
std::vector<SegmentNode> segments(std::int64_t stages, std::int64_t size, auto plain) {
  std::vector<SegmentNode> nodes;
  for (std::int64_t begin = 0; begin < stages; begin += size) {
    const bool replayed = !plain(begin);
    nodes.push_back({{begin, begin + size}, replayed});
  }
  return nodes;
}

TEST(PlannerOracle, UniformSegmentsCostWhatTheyShould) {
  for (const json& data : planner()["uniform"]["data"]) {
    const std::int64_t n = data["N"];
    const std::int64_t k = data["K"];
    const bool last_plain = data["last_plain"];
    const refrain::Segmentation cut(
        n, segments(n, k, [&](std::int64_t begin) { return last_plain && begin + k == n; }));
    for (const auto executor : {Executor::Flat, Executor::Nested}) {
      const auto cost =
          refrain::simulate(cut, equal_chain(static_cast<std::size_t>(n), data["a"]), executor);
      EXPECT_EQ(cost.peak, data["peak"]) << data;
      EXPECT_EQ(cost.forwards - n, data["extra"]) << data;
    }
  }
}

TEST(PlannerOracle, OneInKCostsWhatItShould) {
  for (const json& data : planner()["one_in_k"]["data"]) {
    const std::int64_t n = data["N"];
    const std::int64_t k = data["K"];
    const bool chosen = data["kind"] == "ckpt_one_in_K";
    const refrain::Segmentation cut(
        n, segments(n, 1, [&](std::int64_t i) { return (i % k == 0) != chosen; }));
    const auto chain = equal_chain(static_cast<std::size_t>(n), data["a"]);
    EXPECT_EQ(refrain::simulate(cut, chain, Executor::Flat).peak, data["peak_flat"]) << data;
    EXPECT_EQ(refrain::simulate(cut, chain, Executor::Nested).peak, data["peak_edge"]) << data;
    EXPECT_EQ(refrain::simulate(cut, chain).forwards - n, data["extra"]) << data;
  }
}

std::vector<SegmentNode> halved(refrain::Segment range) {
  std::vector<SegmentNode> nodes;
  while (range.size() > 1) {
    const refrain::Segment first{range.begin, (range.begin + range.end) / 2};
    nodes.push_back({first, true, halved(first)});
    range.begin = first.end;
  }
  nodes.push_back({range, false});
  return nodes;
}

TEST(PlannerOracle, RecursiveSchemesCostWhatTheyShould) {
  for (const json& data : planner()["recursive"]["data"]) {
    const std::int64_t n = data["N"];
    const refrain::Segmentation cut(
        n, data["scheme"] == "binary" ? halved({0, n})
                                      : refrain::planner::binomial_nodes({0, n}, data["slots"]));
    const auto chain = equal_chain(static_cast<std::size_t>(n), data["a"]);
    const auto flat = refrain::simulate(cut, chain, Executor::Flat);
    EXPECT_EQ(flat.peak, data["peak_flat"]) << data;
    EXPECT_EQ(flat.forwards - n, data["extra"]) << data;
    EXPECT_EQ(refrain::simulate(cut, chain, Executor::Nested).peak, data["peak_edge"]) << data;
  }
}

TEST(PlannerOracle, BinomialSchedulesRunTheFewestForwards) {
  const json& table = planner()["revolve"];
  for (std::size_t i = 0; i < table["N"].size(); ++i) {
    for (std::size_t j = 0; j < table["slots"].size(); ++j) {
      const std::int64_t n = table["N"][i];
      const std::int64_t slots = table["slots"][j];
      const json& expected = table["extra_forwards"][i][j];
      EXPECT_EQ(refrain::planner::binomial_extra_forwards(n, slots), expected);
      const refrain::Segmentation cut(n, refrain::planner::binomial_nodes({0, n}, slots));
      const auto cost = refrain::simulate(cut, equal_chain(static_cast<std::size_t>(n), 8));
      EXPECT_EQ(cost.forwards - n, expected) << n << " " << slots;
    }
  }
}

/// Peaks, options, rebates and gradients as no formula ties them together.
ChainCost random_chain(std::mt19937& random) {
  const auto up_to = [&random](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  ChainCost chain;
  std::int64_t input = 1 + up_to(8);
  for (std::int64_t i = 0, n = 2 + up_to(2); i < n; ++i) {
    refrain::StageCost stage;
    stage.input = input;
    stage.output = input = 1 + up_to(8);
    stage.gradients = up_to(1) * up_to(9);
    stage.nograd_forward = static_cast<double>(1 + up_to(9));
    stage.nograd_peak = stage.output + up_to(20);
    stage.tail = static_cast<double>(up_to(1));
    stage.input_unsaved = up_to(1) * up_to(stage.input);
    stage.input_saved_by_nobody = up_to(stage.input_unsaved);
    const auto way = [&](std::int64_t kept) {
      refrain::GradRun run;
      run.forward = static_cast<double>(1 + up_to(9));
      run.backward = static_cast<double>(1 + up_to(9));
      run.saved = stage.output + kept;
      run.forward_peak = run.saved + up_to(20);
      run.backward_peak = run.saved + stage.input + stage.gradients + up_to(20);
      run.backward_peak_with_gradient = run.backward_peak + up_to(stage.output);
      run.replay_peak = stage.input + stage.gradients + up_to(40);
      return run;
    };
    stage.plain = way(up_to(20));
    for (std::int64_t options = up_to(1); options-- > 0;) stage.options.push_back(way(up_to(10)));
    chain.stages.push_back(stage);
  }
  chain.loss_peak = input + up_to(9);
  chain.loss = 1;
  chain.held = up_to(1) * input;
  return chain;
}

TEST(Frontier, IsTheBestOfAllPlansOfRandomChains) {
  std::mt19937 random(7);
  for (int round = 0; round < 150; ++round) {
    const ChainCost chain = random_chain(random);
    for (const auto executor : {Executor::Hooks, Executor::Nested, Executor::Flat}) {
      const Frontier frontier(chain, executor);
      EXPECT_EQ(frontier.points(), best_of_all(chain, executor)) << "round " << round;
      for (const auto& point : frontier.points()) {
        const auto cost = refrain::simulate(frontier.plan(point.peak), chain, executor);
        EXPECT_EQ(cost.peak, point.peak);
        EXPECT_EQ(cost.seconds, point.seconds);
      }
    }
  }
}

}  // namespace
