// SPDX-License-Identifier: BSD-3-Clause
// What do checks cost? A GPT of 16 blocks, each a region: a step with each check, against one with
// the default check. One thread, processor time, medians of interleaved steps.
#include "kept_memory.hpp"
#include "models.hpp"
#include "processor_time.hpp"
#include <refrain/memory.hpp>
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace {

using refrain::Check;
using refrain::CheckpointOptions;
using torch::Tensor;
using Layer = std::function<Tensor(Tensor)>;

struct Way {
  std::string name;
  CheckpointOptions options;
  Layer model = nullptr;
  std::int64_t kept = 0;
  std::vector<double> seconds = {};
};

}  // namespace

int main(int argc, char** argv) {
  bench::keep_memory();
  refrain::count_cpu_memory();
  at::set_num_threads(1);
  torch::manual_seed(0);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 25;
  const auto model = bench::small_gpt();
  std::vector<Layer> layers;
  for (auto block : model.blocks)
    layers.emplace_back([block](const Tensor& x) mutable { return block(x); });
  std::vector<Way> ways{
      {"Check::Metadata, the default", {}},
      {"Check::None", Check::None},
      {"Check::Values", Check::Values},
      {"Check::Values, one call in 20", CheckpointOptions().check(Check::Values, 20)},
      {"Check::Copies", Check::Copies}};
  for (Way& way : ways) {
    way.model = refrain::checkpoint(layers, refrain::policy::all(), way.options);
    const auto y = way.model(model.input);
    const auto before = refrain::memory().live;
    const auto again = way.model(model.input);
    way.kept = (refrain::memory().live - before).count();
    y.backward(model.seed);
    again.backward(model.seed);
  }
  for (int i = 0; i < repeats; ++i) {
    for (Way& way : ways) {
      way.seconds.push_back(
          bench::seconds_of([&] { way.model(model.input).backward(model.seed); }));
    }
  }
  fmt::print("\n| check | step | a forward keeps |\n|---|---|---|\n");
  auto results = nlohmann::json::array();
  for (const Way& way : ways) {
    // Of a check that is made now and then the mean counts.
    const auto typical = [](const Way& of) {
      std::vector<double> seconds = of.seconds;
      std::sort(seconds.begin(), seconds.end());
      double sum = 0;
      const std::size_t cut = seconds.size() / 10;
      for (std::size_t i = cut; i < seconds.size() - cut; ++i) sum += seconds[i];
      return sum / static_cast<double>(seconds.size() - 2 * cut);
    };
    const double step = way.options.check_every() > 1
                            ? typical(way) / typical(ways[0])
                            : bench::median(way.seconds) / bench::median(ways[0].seconds);
    fmt::print("| {} | {:.3f} | {} |\n", way.name, step, refrain::Bytes(way.kept));
    results.push_back({{"check", way.name}, {"step", step}, {"kept_bytes", way.kept}});
  }
  const auto path = std::string(REFRAIN_RESULTS) + "/check_bench.json";
  std::ofstream(path) << results.dump(2) << "\n";
  fmt::print(
      "\n16 blocks, one thread, processor time, malloc keeps its memory; medians of {} interleaved "
      "steps, and the\nmiddle mean where not every call is checked. Numbers in {}.\n",
      repeats, path);
}
