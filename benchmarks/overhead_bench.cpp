// SPDX-License-Identifier: BSD-3-Clause
// What does a region cost beyond the second forward? Chains of `sin` on 4 by 4 numbers, where
// nothing else takes time: each op saves one tensor. One thread, processor time, medians of
// interleaved runs.
#include "peers.hpp"
#include <refrain/checkpoint.hpp>

#include <torch/torch.h>

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

using torch::Tensor;

constexpr std::int64_t kShort = 2;
constexpr std::int64_t kLong = 66;

struct Chain {
  std::int64_t length;
  Tensor operator()(Tensor x) const {
    for (std::int64_t i = 0; i < length; ++i) x = x.sin();
    return x;
  }
};

Tensor input() { return torch::randn({4, 4}).requires_grad_(); }

void forward(benchmark::State& state) {
  const auto x = input();
  const Chain chain{state.range(0)};
  for (auto _ : state) benchmark::DoNotOptimize(chain(x));
}

template <class Body>
void steps(benchmark::State& state, const Body& body) {
  const auto x = input();
  const auto seed = torch::ones({4, 4});
  for (auto _ : state) body(x).backward(seed);
}

void plain(benchmark::State& state) { steps(state, Chain{state.range(0)}); }

/// A way to call a region, and what the table calls it.
struct Way {
  std::string name;
  refrain::CheckpointOptions options;
};

std::vector<Way> ways() {
  using refrain::CheckpointOptions;
  return {{"default options", {}},
          {"without the random stream", refrain::Rng::Ignore},
          {"without checks", refrain::Check::None},
          {"without either", CheckpointOptions(refrain::Rng::Ignore).check(refrain::Check::None)},
          {"without early stop", refrain::EarlyStop::Off},
          {"function route", refrain::Route::Function}};
}

/// Keeps the medians of all repetitions, by name.
class Medians : public benchmark::ConsoleReporter {
 public:
  Medians() : ConsoleReporter(OO_None) {}
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const auto& run : runs) {
      if (run.aggregate_name == "median")
        values_[run.run_name.function_name + "/" + run.run_name.args] = run.GetAdjustedCPUTime();
    }
  }
  double operator()(const std::string& name, std::int64_t length) const {
    return values_.at(fmt::format("{}/{}", name, length)) / 1000;  // microseconds
  }

 private:
  std::map<std::string, double> values_;
};

void run_benchmarks(Medians& medians) {
  const auto file = fmt::format("--benchmark_out={}/overhead_bench.json", REFRAIN_RESULTS);
  std::vector<std::string> words = {"overhead_bench",
                                    file,
                                    "--benchmark_out_format=json",
                                    "--benchmark_repetitions=15",
                                    "--benchmark_min_time=0.02",
                                    "--benchmark_enable_random_interleaving=true"};
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  int argc = static_cast<int>(argv.size());
  benchmark::Initialize(&argc, argv.data());
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->Arg(kShort)->Arg(kLong);
  };
  add("forward", forward);
  add("plain", plain);
  for (const auto& way : ways()) {
    add(way.name, [options = way.options](benchmark::State& state) {
      steps(state, refrain::checkpoint(Chain{state.range(0)}, options));
    });
  }
  benchmark::RunSpecifiedBenchmarks(&medians);
}

struct Cost {
  double fixed;       // of a region, microseconds
  double per_tensor;  // that it saves
};

/// From a checkpointed step take the plain step and the second forward: what is left is overhead.
Cost cost(double short_extra, double long_extra) {
  const auto slope = (long_extra - short_extra) / static_cast<double>(kLong - kShort);
  return {short_extra, slope};
}

void print_row(const std::string& name, Cost cost) {
  fmt::print("| {} | {:.1f} µs | {:.2f} µs |\n", name, cost.fixed, cost.per_tensor);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  Medians medians;
  run_benchmarks(medians);
  const auto extra = [&](const std::string& name, std::int64_t length) {
    return medians(name, length) - medians("plain", length) - medians("forward", length);
  };
  auto results = nlohmann::json::object();
  fmt::print(
      "| a region of two tiny ops, beyond its second forward | fixed | each saved tensor more "
      "|\n|---|---|---|\n");
  for (const auto& way : ways()) {
    const auto found = cost(extra(way.name, kShort), extra(way.name, kLong));
    print_row("Refrain, " + way.name, found);
    results[way.name] = {{"fixed", found.fixed}, {"per_tensor", found.per_tensor}};
  }
  const auto peers = bench::peer("overhead.py", fmt::format("{} {}", kShort, kLong));
  if (!peers.is_null()) {
    const auto theirs = [&](std::int64_t length) {
      const auto& times = peers.at(std::to_string(length));
      return times.at("checkpointed").get<double>() - times.at("plain").get<double>() -
             times.at("forward").get<double>();
    };
    const auto found = cost(theirs(kShort), theirs(kLong));
    print_row("torch.utils.checkpoint (use_reentrant=False)", found);
    results["pytorch"] = {{"fixed", found.fixed}, {"per_tensor", found.per_tensor}};
    const auto ours = extra("default options", kShort);
    fmt::print("\nPyTorch's fixed cost is {:.0f} times Refrain's, measured in one run.\n",
               found.fixed / ours);
  }
  const auto path = std::string(REFRAIN_RESULTS) + "/overhead_table.json";
  std::ofstream(path) << results.dump(2) << "\n";
  fmt::print("\nOne thread, processor time, medians of 15; numbers in {}\n", path);
}
