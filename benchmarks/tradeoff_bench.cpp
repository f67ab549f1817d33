// SPDX-License-Identifier: BSD-3-Clause
// How much memory does each policy save, and what does it cost? Peak bytes (exact, by the counting
// allocator) and time of a training step (forward and backward; one thread, processor time, medians
// of interleaved steps) for stacks of equal blocks, beside PyTorch's own checkpointing where it was
// asked for.
#include "models.hpp"
#include "peers.hpp"
#include "processor_time.hpp"
#include <refrain/memory.hpp>
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

using bench::Tensor;
using nlohmann::json;
namespace policy = refrain::policy;

constexpr double kMiB = 1024.0 * 1024.0;

struct Case {
  Case(std::string name, policy::AnyPolicy by, std::int64_t k = 0)
      : policy(std::move(name)), cut(std::move(by)), every(k) {}

  std::string policy;
  policy::AnyPolicy cut;
  std::int64_t every;  // K of every(K)
  std::function<Tensor(Tensor)> stack;
  std::vector<double> seconds;
  std::int64_t peak = 0;
  bool equal = false;
};

std::vector<Case> cases() {
  return {{"none", policy::none()},          {"all", policy::all()},
          {"every(1)", policy::every(1), 1}, {"every(2)", policy::every(2), 2},
          {"every(4)", policy::every(4), 4}, {"every(8)", policy::every(8), 8},
          {"sqrt_n", policy::sqrt_n()},      {"one_in(2)", policy::one_in(2)},
          {"first(4)", policy::first(4)},    {"binary", policy::binary()}};
}

/// What predicts a stack's peak: a boundary, what one block leaves behind, and the peak of a stack
/// of one checkpointed block, which tells what its backward needs for a moment.
struct Sizes {
  double boundary;
  double block;
  double alone;
};

template <class Block>
void zero_gradients(const bench::Model<Block>& model) {
  for (const auto& parameter : model.parameters()) parameter.mutable_grad().zero_();
  Tensor(model.input).mutable_grad() = Tensor();
}

template <class Block>
Sizes sizes_of(const bench::Model<Block>& model) {
  const auto before = refrain::memory().live.count();
  Tensor x = model.input;
  for (auto block : model.blocks) x = block(x);
  const auto left = static_cast<double>(refrain::memory().live.count() - before);
  x = Tensor();
  auto one = refrain::checkpoint(model.blocks[0]);
  refrain::reset_peak();
  one(model.input).backward(model.seed);
  const auto alone = static_cast<double>(refrain::memory().peak.count() - before);
  zero_gradients(model);
  return {static_cast<double>(model.input.nbytes()),
          left / static_cast<double>(model.blocks.size()), alone};
}

/// The gradient of the result comes from outside, so that no loss adds to the peak.
template <class Block>
void step(const Case& subject, const bench::Model<Block>& model) {
  subject.stack(model.input).backward(model.seed);
}

template <class Block>
void measure(bench::Model<Block>& model, std::vector<Case>& subjects, int repeats) {
  std::vector<Tensor> plain;
  for (auto& subject : subjects) {
    auto stack = refrain::checkpoint(model.blocks, subject.cut);
    subject.stack = [stack](Tensor x) mutable { return stack(x); };
    step(subject, model);  // fills lazy caches
    zero_gradients(model);
    refrain::reset_peak();
    const auto before = refrain::memory().live.count();
    step(subject, model);
    subject.peak = refrain::memory().peak.count() - before;
    std::vector<Tensor> gradients{model.input.grad().clone()};
    for (const auto& parameter : model.parameters()) gradients.push_back(parameter.grad().clone());
    if (plain.empty()) plain = gradients;
    subject.equal = true;
    for (std::size_t i = 0; i < plain.size(); ++i)
      subject.equal = subject.equal && torch::equal(plain[i], gradients[i]);
  }
  for (int i = 0; i < repeats; ++i) {
    for (auto& subject : subjects) {
      zero_gradients(model);
      subject.seconds.push_back(bench::seconds_of([&] { step(subject, model); }));
    }
  }
}

/// What `every(K)` should take, but for the moments inside one block's backward: `G·X + K·Ā + 2X`.
double closed_form(double segments, double k, Sizes sizes) {
  return segments * sizes.boundary + k * sizes.block + 2 * sizes.boundary;
}
/// The same with those moments, as one block alone shows them.
double from_one_block(double segments, double k, Sizes sizes) {
  return sizes.alone + (segments - 1) * sizes.boundary + (k - 1) * sizes.block;
}

json row_of(const Case& subject, const Case& plain, Sizes sizes, std::size_t blocks) {
  const auto time = bench::median(subject.seconds);
  json row = {{"policy", subject.policy},
              {"peak_bytes", subject.peak},
              {"share", static_cast<double>(subject.peak) / static_cast<double>(plain.peak)},
              {"seconds", time},
              {"ratio", time / bench::median(plain.seconds)},
              {"gradients_equal", subject.equal}};
  const auto k = static_cast<std::size_t>(subject.every);
  if (k != 0 && blocks % k == 0 && k < blocks) {
    const auto segments = static_cast<double>(blocks / k);
    const auto peak = static_cast<double>(subject.peak);
    row["closed_form_bytes"] = closed_form(segments, static_cast<double>(k), sizes);
    row["off_percent"] = 100 * (peak / row["closed_form_bytes"].get<double>() - 1);
    row["from_one_block_bytes"] = from_one_block(segments, static_cast<double>(k), sizes);
    row["off_one_block_percent"] = 100 * (peak / row["from_one_block_bytes"].get<double>() - 1);
  }
  return row;
}

std::string theirs(const json& peers, const std::string& policy) {
  for (const auto& row : peers) {
    if (row.at("policy") != policy) continue;
    return fmt::format("{:.1f} MiB | {:.2f}", row.at("peak_bytes").get<double>() / kMiB,
                       row.at("ratio").get<double>());
  }
  return "|";
}

void print_table(const std::string& model, const json& table, const json& peers) {
  fmt::print("\n### {}: {} blocks, boundary {:.2f} MiB, a block leaves {:.2f} MiB\n\n", model,
             table.at("blocks").get<int>(), table.at("boundary_bytes").get<double>() / kMiB,
             table.at("block_bytes").get<double>() / kMiB);
  fmt::print(
      "| policy | peak | of plain | off G·X + K·Ā + 2X | off one block's | step | gradients |{}\n",
      peers.is_null() ? "" : " PyTorch peak | PyTorch step |");
  fmt::print("|---|---|---|---|---|---|---|{}\n", peers.is_null() ? "" : "---|---|");
  for (const auto& row : table.at("rows")) {
    const auto name = row.at("policy").get<std::string>();
    const auto model_says =
        row.contains("off_percent")
            ? fmt::format("{:+.1f} % | {:+.1f} %", row.at("off_percent").get<double>(),
                          row.at("off_one_block_percent").get<double>())
            : std::string("|");
    fmt::print("| {} | {:.1f} MiB | {:.0f} % | {} | {:.2f} | {} |{}\n", name,
               row.at("peak_bytes").get<double>() / kMiB, 100 * row.at("share").get<double>(),
               model_says, row.at("ratio").get<double>(),
               row.at("gradients_equal").get<bool>() ? "equal" : "DIFFERENT",
               peers.is_null() ? "" : " " + theirs(peers, name) + " |");
  }
}

template <class Block>
void run(bench::Model<Block> model, int repeats, json& results) {
  auto subjects = cases();
  const auto sizes = sizes_of(model);
  measure(model, subjects, repeats);
  json table = {{"model", model.name},
                {"blocks", model.blocks.size()},
                {"boundary_bytes", sizes.boundary},
                {"block_bytes", sizes.block},
                {"one_block_bytes", sizes.alone}};
  for (const auto& subject : subjects)
    table["rows"].push_back(row_of(subject, subjects[0], sizes, model.blocks.size()));
  table["pytorch"] = bench::peer("tradeoff.py", fmt::format("{} {}", model.name, repeats));
  print_table(model.name, table, table.at("pytorch"));
  std::fflush(stdout);
  results.push_back(std::move(table));
}

}  // namespace

int main(int argc, char** argv) {
  refrain::count_cpu_memory();
  at::set_num_threads(1);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  const std::string only = argc > 2 ? argv[2] : "";
  auto results = json::array();
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  if (wanted("gpt")) run(bench::gpt(), repeats, results);
  if (wanted("mlp")) run(bench::mlp(), repeats, results);
  if (wanted("resnet")) run(bench::resnet(), repeats, results);
  if (wanted("lstm")) run(bench::lstm(), repeats, results);
  const auto path = std::string(REFRAIN_RESULTS) + "/tradeoff_bench.json";
  std::ofstream(path) << results.dump(2) << "\n";
  fmt::print(
      "\nOne thread, processor time, medians of {} interleaved steps; step is against plain.\n"
      "Numbers in {}; plot_tradeoff.py draws them.\n",
      repeats, path);
}
