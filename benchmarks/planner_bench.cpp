// SPDX-License-Identifier: BSD-3-Clause
// How long does the exact solver take? Chains like transformers, random ones, and a thousand equal
// steps; and the search for plans that move memory. One thread.
#include "processor_time.hpp"
#include <refrain/links.hpp>
#include <refrain/planner/frontier.hpp>
#include <refrain/planner/tiered_frontier.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace {

using refrain::ChainCost;
using refrain::planner::Frontier;
using refrain::planner::TieredFrontier;

/// `unlike`: how much one stage's bytes and seconds may differ from another's, as a share.
ChainCost chain_of(std::int64_t stages, double unlike) {
  std::mt19937 random(1);
  const auto about = [&](double value) {
    return value * std::uniform_real_distribution<double>(1 - unlike, 1 + unlike)(random);
  };
  const auto bytes = [&](double value) { return static_cast<std::int64_t>(about(value) * 1000); };
  ChainCost chain;
  std::int64_t input = bytes(16);
  for (std::int64_t i = 0; i < stages; ++i) {
    refrain::StageCost stage;
    stage.input = input;
    stage.output = input = unlike == 0 ? input : bytes(16);
    stage.nograd_forward = about(10);
    stage.nograd_peak = bytes(100);
    stage.tail = about(3);
    stage.plain = {stage.nograd_forward, about(20),  bytes(272), bytes(300),
                   bytes(350),           bytes(360), bytes(350)};
    stage.saved_tensors = stage.plain.saved;
    chain.stages.push_back(stage);
  }
  chain.loss_peak = input;
  return chain;
}

/// An embedding, equal blocks, a head.
ChainCost transformer(std::int64_t stages) {
  ChainCost chain = chain_of(stages, 0);
  refrain::StageCost& first = chain.stages.front();
  first.input = 0;
  first.nograd_forward = first.plain.forward = 1;
  first.plain.saved = first.saved_tensors = first.output;
  refrain::StageCost& last = chain.stages.back();
  last.output *= 12;
  last.saved_tensors = last.plain.saved += last.output;
  last.plain.forward_peak += last.output;
  last.plain.backward_peak_with_gradient += 2 * last.output;
  last.plain.replay_peak += 2 * last.output;
  chain.loss_peak = 3 * last.output;
  return chain;
}

/// `solve` gives a frontier.
template <class Solve>
void run(const std::string& what, nlohmann::json& results, const Solve& solve) {
  std::vector<double> seconds;
  std::size_t points = 0;
  for (int i = 0; i < 3; ++i)
    seconds.push_back(bench::seconds_of([&] { points = solve().points().size(); }));
  fmt::print("| {} | {} | {:.3f} s |\n", what, points, bench::median(seconds));
  results.push_back({{"chain", what}, {"plans", points}, {"seconds", bench::median(seconds)}});
}

void run(const std::string& what, const ChainCost& chain, Frontier::Limits limits,
         nlohmann::json& results) {
  run(what, results, [&] { return Frontier(chain, refrain::Executor::Hooks, limits); });
}

/// A host to which a stage's bytes take as long as 2.5 forwards.
void run_with_host(const std::string& what, const ChainCost& chain, nlohmann::json& results) {
  const refrain::StageCost& stage = chain[chain.size() / 2];
  const double rate = static_cast<double>(stage.plain.saved) / (2.5 * stage.plain.forward);
  const refrain::Links host{.tier = "host", .out = rate, .back = rate};
  run(what + ", with a host", results, [&] { return TieredFrontier(chain, {host}); });
}

}  // namespace

int main() {
  auto results = nlohmann::json::array();
  fmt::print("| chain | plans on the frontier | one solve |\n|---|---|---|\n");
  constexpr double kAlmostEqual = 0.02;
  constexpr double kUnlike = 0.5;
  for (const std::int64_t blocks : {32, 48, 96})
    run(fmt::format("embedding, {} equal blocks, head", blocks - 2), transformer(blocks), {},
        results);
  run("48 stages, equal but for 2 %", chain_of(48, kAlmostEqual), {}, results);
  run("48 stages, unlike by half", chain_of(48, kUnlike), {}, results);
  run("96 stages, equal but for 2 %, 512 steps a cell", chain_of(96, kAlmostEqual),
      {.longest_list = 512}, results);
  const ChainCost steps = chain_of(1000, 0);
  constexpr std::int64_t kStates = 50;
  run("1000 equal steps, in 50 states and one step's activations", steps,
      {.budget = kStates * steps[0].input + steps[0].plain.replay_peak}, results);
  for (const std::int64_t blocks : {32, 48, 96}) {
    run_with_host(fmt::format("embedding, {} equal blocks, head", blocks - 2), transformer(blocks),
                  results);
  }
  run_with_host("48 stages, equal but for 2 %", chain_of(48, kAlmostEqual), results);
  run_with_host("48 stages, unlike by half", chain_of(48, kUnlike), results);
  const auto path = std::string(REFRAIN_RESULTS) + "/planner_bench.json";
  std::ofstream(path) << results.dump(2) << "\n";
  fmt::print("\nOne thread, processor time, medians of 3; numbers in {}\n", path);
}
