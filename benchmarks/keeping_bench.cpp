// SPDX-License-Identifier: BSD-3-Clause
// What do plans gain that may keep some results of a layer? Budgets between the leanest step and
// the plain one of a GPT with attention written out and dropout: the cheapest plan that keeps or
// replays whole layers, and the cheapest that may also keep products or random numbers. Measured
// peaks and step times; one thread, processor time, medians of interleaved steps.
#include "kept_memory.hpp"
#include "models.hpp"
#include "processor_time.hpp"
#include <refrain/memory.hpp>
#include <refrain/plan.hpp>
#include <refrain/profiler.hpp>
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

using bench::Tensor;
using nlohmann::json;
using refrain::Bytes;
using refrain::Plan;
using refrain::Profile;
namespace policy = refrain::policy;

constexpr double kDrop = 0.1;
constexpr double kMiB = 1024.0 * 1024.0;

/// softmax(Q Kᵀ / √d) V, written out, and dropout behind attention and MLP.
struct WrittenOutBlockImpl : bench::GptBlockImpl {
  using GptBlockImpl::GptBlockImpl;

  Tensor forward(Tensor x) {
    x = x + torch::dropout(out(attend_written_out(norm1(x))), kDrop, true);
    return x + torch::dropout(down(torch::gelu(up(norm2(x)))), kDrop, true);
  }
  Tensor attend_written_out(const Tensor& x) {
    const auto parts = qkv(x)
                           .view({x.size(0), x.size(1), 3, heads, x.size(2) / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const double scale = 1 / std::sqrt(static_cast<double>(parts[0].size(-1)));
    const auto weights = torch::softmax(parts[0].matmul(parts[1].transpose(-2, -1)) * scale, -1);
    return weights.matmul(parts[2]).transpose(1, 2).reshape(x.sizes());
  }
};
TORCH_MODULE(WrittenOutBlock);

using Model = bench::Model<WrittenOutBlock>;

std::vector<policy::OpPolicy> keeps() {
  const auto products_with_weights = policy::keep_ops({"mm", "addmm"});
  return {policy::keep_matmuls(), products_with_weights,
          products_with_weights + policy::keep_random()};
}

/// A plan, and what a step by it takes.
struct Measured {
  Plan plan;
  std::int64_t peak = 0;
  std::vector<double> times = {};
};

struct Row {
  double share = 0;  ///< Of the way from the least peak to the plain one.
  Measured whole, keeping;
};

void step(const Model& model, Measured& measured) {
  for (const Tensor& parameter : model.parameters()) parameter.mutable_grad().zero_();
  Tensor(model.input).mutable_grad() = Tensor();
  auto chain =
      refrain::checkpoint(model.blocks, measured.plan, refrain::CheckpointOptions().keeps(keeps()));
  refrain::reset_peak();
  measured.times.push_back(bench::seconds_of([&] {
    auto y = chain(model.input);
    y.backward(model.seed);
  }));
  measured.peak = refrain::memory().peak.count();
}

Profile without_options(Profile profile) {
  for (refrain::StageCost& stage : profile.chain.stages) stage.options.clear();
  return profile;
}

std::vector<Row> rows_of(const Profile& profile) {
  constexpr int kBudgets = 8;
  const Profile whole = without_options(profile);
  const Bytes least = refrain::least_budget(whole);
  const Bytes most = whole.resident + whole.slack + Bytes(refrain::plain_cost(whole).peak);
  std::vector<Row> rows;
  for (int i = 1; i <= kBudgets; ++i) {
    const Bytes budget = least + (most - least) * i / kBudgets;
    rows.push_back({static_cast<double>(i) / kBudgets,
                    {refrain::plan(whole, budget)},
                    {refrain::plan(profile, budget)}});
  }
  return rows;
}

json json_of(const Measured& measured) {
  return {{"cut", to_string(measured.plan.layers())},
          {"budget_bytes", measured.plan.budget().count()},
          {"predicted_bytes", measured.plan.predicted_peak().count()},
          {"peak_bytes", measured.peak},
          {"overhead_predicted", measured.plan.overhead()},
          {"seconds", bench::median(measured.times)}};
}

}  // namespace

int main(int argc, char** argv) {
  bench::keep_memory();
  refrain::count_cpu_memory();
  at::set_num_threads(1);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  const auto model = bench::stack_of<WrittenOutBlock>("gpt, written out", 8, {2, 256, 256}, 256, 4);
  const auto profile = refrain::profile(
      refrain::ProfileOptions().repeats(2 * repeats).keeps(keeps()), model.blocks, model.input);
  auto rows = rows_of(profile);
  for (int i = 0; i <= repeats; ++i) {
    for (Row& row : rows) {
      step(model, row.whole);
      step(model, row.keeping);
    }
    if (i > 0) continue;  // the first warms up
    for (Row& row : rows) {
      row.whole.times.clear();
      row.keeping.times.clear();
    }
  }

  const double plain = bench::median(rows.back().whole.times);
  fmt::print(
      "| budget | whole layers: peak | predicted | step | keeping: peak | predicted | step "
      "|\n|---|---|---|---|---|---|---|\n");
  json table;
  for (const Row& row : rows) {
    const auto cells = [&](const Measured& measured) {
      return fmt::format("{:.1f} MiB | {:.3f} | {:.3f}", static_cast<double>(measured.peak) / kMiB,
                         1 + measured.plan.overhead(), bench::median(measured.times) / plain);
    };
    fmt::print("| {:.1f} MiB | {} | {} |\n",
               static_cast<double>(row.whole.plan.budget().count()) / kMiB, cells(row.whole),
               cells(row.keeping));
    table.push_back(
        {{"share", row.share}, {"whole", json_of(row.whole)}, {"keeping", json_of(row.keeping)}});
  }
  const auto path = std::string(REFRAIN_RESULTS) + "/keeping_bench.json";
  std::ofstream(path) << json{{"layers", model.blocks.size()}, {"rows", table}}.dump(2) << "\n";
  fmt::print(
      "\n8 blocks of width 256, 2 × 256 tokens, one thread; medians of {} interleaved steps; step "
      "is against plain.\nNumbers in {}.\n",
      repeats, path);
}
