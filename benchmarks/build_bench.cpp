// SPDX-License-Identifier: BSD-3-Clause
// What does including Refrain add to a translation unit that includes LibTorch already?
// Compiles small files in turn, a few times, and compares processor time and object size.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Unit {
  Unit(std::string what, std::string file, std::string source, std::string how = {})
      : name(std::move(what)),
        stem(std::move(file)),
        text(std::move(source)),
        flags(std::move(how)) {}

  std::string name;
  std::string stem;
  std::string text;
  std::string flags;
  std::vector<double> seconds;
  std::uintmax_t bytes = 0;
};

/// A small trainer, as users write them. `$INCLUDE` and `$CALL` are where Refrain comes in.
constexpr const char* kTrainer = R"(
#include <torch/torch.h>
$INCLUDE
#include <cstdio>
#include <vector>

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        dropout(register_module("dropout", torch::nn::Dropout(0.1))) {}
  torch::Tensor forward(torch::Tensor x) {
    return x + dropout(down(torch::gelu(up(norm(x)))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t width, int depth) {
    for (int i = 0; i < depth; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), $CALL(Block(width))));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<decltype($CALL(Block(1)))> blocks;
};
TORCH_MODULE(Net);

int main() {
  Net net(64, 4);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 0; step < 100; ++step) {
    const auto x = torch::randn({8, 64});
    const auto loss = torch::mse_loss(net(x), x.roll(1, -1));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    std::printf("%d %f\n", step, loss.item<double>());
  }
}
)";

std::string filled(std::string text, const std::string& include, const std::string& call) {
  for (const auto& [mark, value] : {std::pair<std::string, std::string>{"$INCLUDE", include},
                                    std::pair<std::string, std::string>{"$CALL", call}}) {
    for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark)) {
      text.replace(at, mark.size(), value);
    }
  }
  return text;
}

double children_seconds() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void compile(const fs::path& source, const fs::path& object, const std::string& flags) {
  const auto command = fmt::format("{} {} -c \"{}\" -o \"{}\"", REFRAIN_COMPILE, flags,
                                   source.string(), object.string());
  if (std::system(command.c_str()) == 0) return;
  fmt::print(stderr, "build_bench: this does not compile: {}\n", command);
  std::exit(1);
}

void compile(Unit& unit, const fs::path& folder) {
  const auto source = folder / (unit.stem + ".cpp");
  const auto object = folder / (unit.stem + ".o");
  std::ofstream(source) << unit.text;
  const auto before = children_seconds();
  compile(source, object, unit.flags);
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
  const std::string include = "#include <refrain/refrain.hpp>";
  const auto folder = fs::path(REFRAIN_RESULTS) / "build_bench";
  const auto both = folder / "precompiled.hpp";
  const auto wrapped = filled(kTrainer, include, "refrain::checkpoint");
  std::vector<Unit> units = {
      {"a trainer in plain LibTorch", "plain", filled(kTrainer, "", "")},
      {"the same, including Refrain", "including", filled(kTrainer, include, "")},
      {"the same, each block wrapped", "wrapped", wrapped},
      {"the same, both headers precompiled", "precompiled", wrapped,
       fmt::format("-Winvalid-pch -include \"{}\"", both.string())}};
  fs::create_directories(folder);
  std::ofstream(both) << "#include <torch/torch.h>\n" << include << "\n";
  compile(both, both.string() + ".gch", "-x c++-header");
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
