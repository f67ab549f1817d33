// SPDX-License-Identifier: BSD-3-Clause
//
// What the device's own allocator says, and whether predictions hold against it.
#include "models.hpp"
#include "steps.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/memory.hpp>
#include <refrain/plan.hpp>
#include <refrain/profiler.hpp>

#include <cmath>
#include <fstream>

namespace gpu_check {
namespace {

using refrain::Bytes;

Outcome counts_bytes(const Where& where) {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  if (where.on_gpu()) at::accelerator::emptyCache();  // a block at hand may be a little larger
  const auto before = refrain::memory(where.device).live;
  refrain::reset_peak(where.device);
  {
    const auto more = torch::empty({kBytes}, torch::dtype(at::kByte).device(where.device));
    const auto now = refrain::memory(where.device).live;
    require(now - before == Bytes(kBytes), fmt::format("{} live, not 64 MiB", now - before));
  }
  const auto after = refrain::memory(where.device);
  require(after.live == before, "what was given back still counts");
  require(after.peak - before == Bytes(kBytes), fmt::format("peak {}", after.peak - before));
  refrain::reset_peak(where.device);
  require(refrain::memory(where.device).peak == before, "the peak does not start again");
  return passed();
}

Outcome writes_a_snapshot(const Where& where) {
  if (where.cuda == nullptr) return skipped("needs CUDA");
  const auto path = where.out / "memory_snapshot.pickle";
  const auto region = refrain::checkpoint([](Tensor t) { return t.sin().exp().tanh(); });
  where.cuda->record_memory([&] { region(leaf(where, {512, 512})).sum().backward(); },
                            path.string());
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  require(bytes.size() > 1000 && bytes[0] == '\x80' && bytes.back() == '.',
          fmt::format("{} of {} bytes is no pickle", path.string(), bytes.size()));
  require(bytes.find("segments") != std::string::npos &&
              bytes.find("device_traces") != std::string::npos,
          "it lacks what the visualiser reads");
  return passed(fmt::format("{} bytes in {}", bytes.size(), path.filename().string()));
}

/// Five budgets from the least possible to the plain step's: each plan's step is measured.
Outcome predicts_the_peak(const Where& where) {
  torch::manual_seed(1);
  const auto width = where.size<std::int64_t>(1024, 64);
  const auto layers_count = where.size(12, 8);
  std::vector<bench::GptBlock> layers;
  for (int i = 0; i < layers_count; ++i) {
    layers.emplace_back(width, where.size<std::int64_t>(16, 4));
    layers.back()->to(where.device);
    for (Tensor& parameter : layers.back()->parameters())
      parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  const auto x =
      torch::randn({where.size(4, 2), where.size(1024, 64), width}, where.device).requires_grad_();
  const auto seed = torch::randn_like(x);
  const auto step = [&](auto& chain) {
    x.mutable_grad() = Tensor();
    auto y = chain(x);
    y.backward(seed);
  };
  {
    auto warm_up = refrain::checkpoint(layers, refrain::policy::all());
    step(warm_up);  // cuBLAS takes its workspaces, for good
    x.mutable_grad() = Tensor();
  }
  const auto profile = refrain::profile(layers, x);
  const auto least = refrain::least_budget(profile).count();
  const auto most = (profile.resident + profile.slack).count() + plain_cost(profile).peak;
  double worst = 0;
  bool over = false;
  std::string text;
  for (int i = 0; i < 5; ++i) {
    const Bytes budget(least + (most - least) * i / 4);
    const auto plan = refrain::plan(profile, budget);
    auto chain = refrain::checkpoint(layers, plan);
    step(chain);
    x.mutable_grad() = Tensor();
    synchronize(where);
    refrain::reset_peak(where.device);
    step(chain);
    const auto peak = refrain::memory(where.device).peak;
    const double off = 100 * (static_cast<double>(peak.count()) /
                                  static_cast<double>(plan.predicted_peak().count()) -
                              1);
    worst = std::max(worst, std::abs(off));
    over = over || peak > budget;
    text +=
        fmt::format("{}{} predicted, {} measured", i == 0 ? "" : "; ", plan.predicted_peak(), peak);
  }
  if (over) return failed("a budget was exceeded: " + text);
  return at_most(1, worst, "% off at most", text);
}

}  // namespace

void add_memory(Checks& checks) {
  checks.group("memory");
  checks.check("device statistics", counts_bytes);
  checks.check("a memory snapshot for the visualiser", writes_a_snapshot);
  checks.check("predicted against measured peak at five budgets", predicts_the_peak);
}

}  // namespace gpu_check
