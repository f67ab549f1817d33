// SPDX-License-Identifier: BSD-3-Clause
// What does including Refrain add to a translation unit that includes LibTorch already?
// Compiles three small files in turn, a few times, and compares processor time and object size.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Unit {
  std::string name;
  std::string text;
  std::vector<double> seconds;
  std::uintmax_t bytes = 0;
};

constexpr const char* kTorch = "#include <torch/torch.h>\n";
constexpr const char* kRefrain = "#include <refrain/refrain.hpp>\n";
constexpr const char* kStep = R"(
at::Tensor step(torch::nn::Linear block, const at::Tensor& x) { return block(x); }
)";
constexpr const char* kQuietStep = R"(
at::Tensor step(torch::nn::Linear block, const at::Tensor& x) { return refrain::checkpoint(block)(x); }
)";

double children_seconds() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void compile(Unit& unit, const fs::path& folder) {
  const auto source = folder / (unit.name + ".cpp");
  const auto object = folder / (unit.name + ".o");
  std::ofstream(source) << unit.text;
  const auto before = children_seconds();
  const auto command =
      fmt::format("{} -c \"{}\" -o \"{}\"", REFRAIN_COMPILE, source.string(), object.string());
  if (std::system(command.c_str()) != 0) {
    fmt::print(stderr, "build_bench: this does not compile: {}\n", command);
    std::exit(1);
  }
  unit.seconds.push_back(children_seconds() - before);
  unit.bytes = fs::file_size(object);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print_table(const std::vector<Unit>& units, nlohmann::json& results) {
  const auto& base = units.front();
  fmt::print(
      "| translation unit | compile time | added | object | added |\n|---|---|---|---|---|\n");
  for (const auto& unit : units) {
    const auto seconds = median(unit.seconds);
    const auto kib = static_cast<double>(unit.bytes) / 1024;
    const auto more_time = 100 * (seconds / median(base.seconds) - 1);
    const auto more_bytes = 100 * (kib * 1024 / static_cast<double>(base.bytes) - 1);
    fmt::print("| {} | {:.1f} s | {:+.1f} % | {:.0f} KiB | {:+.1f} % |\n", unit.name, seconds,
               more_time, kib, more_bytes);
    results.push_back({{"unit", unit.name},
                       {"seconds", unit.seconds},
                       {"bytes", unit.bytes},
                       {"added_time_percent", more_time},
                       {"added_bytes_percent", more_bytes}});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  std::vector<Unit> units = {
      {"torch", std::string(kTorch) + kStep, {}},
      {"torch_and_refrain", std::string(kTorch) + kRefrain + kStep, {}},
      {"torch_and_a_checkpoint", std::string(kTorch) + kRefrain + kQuietStep, {}}};
  const auto folder = fs::path(REFRAIN_RESULTS) / "build_bench";
  fs::create_directories(folder);
  for (int i = 0; i < repeats; ++i) {
    for (auto& unit : units) compile(unit, folder);
  }
  auto results = nlohmann::json::array();
  print_table(units, results);
  const auto path = fs::path(REFRAIN_RESULTS) / "build_bench.json";
  std::ofstream(path) << results.dump(2) << "\n";
  fmt::print("\nmedians of {} compilations each, processor time; numbers in {}\n", repeats,
             path.string());
}
