// SPDX-License-Identifier: BSD-3-Clause
// Is a plan ever behind a fixed policy? For every every(k), one_in(k) and sqrt_n of a chain: the
// cheapest plan within that policy's peak, and the leanest within its time, all measured (exact
// peak bytes; one thread, processor time, medians of interleaved steps). PyTorch's
// checkpoint_sequential beside them where it was asked for.
#include "kept_memory.hpp"
#include "models.hpp"
#include "peers.hpp"
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
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

using bench::Tensor;
using nlohmann::json;
using refrain::Bytes;
using refrain::Plan;
using refrain::Profile;
namespace policy = refrain::policy;
using Layer = std::function<Tensor(Tensor)>;

constexpr std::int64_t kSmallestBlock = 64;  // of the counting allocator
constexpr double kMiB = 1024.0 * 1024.0;

/// A chain and its data; its gradients exist before the first step.
struct Subject {
  std::string name;
  std::vector<Layer> layers;
  std::vector<Tensor> parameters;
  Tensor input;
  Tensor seed;
  bool has_peer = false;  ///< PyTorch's checkpointing is measured on the same model.
};

template <class Block>
Subject subject_of(const bench::Model<Block>& model) {
  Subject subject{model.name, {}, model.parameters(), model.input, model.seed, true};
  for (auto block : model.blocks)
    subject.layers.emplace_back([block](const Tensor& x) mutable { return block(x); });
  return subject;
}

/// Images that shrink as their channels grow: layers that cost and keep very unlike amounts.
Subject pyramid() {
  torch::manual_seed(1);
  Subject subject{"pyramid", {}, {}, torch::randn({4, 8, 64, 64}).requires_grad_(), {}};
  std::int64_t channels = 8;
  for (int level = 0; level < 4; ++level) {
    if (level > 0) {
      torch::nn::Conv2d down(
          torch::nn::Conv2dOptions(channels, 2 * channels, 3).stride(2).padding(1).bias(false));
      subject.layers.emplace_back([down](const Tensor& x) mutable { return down(x); });
      for (const auto& parameter : down->parameters()) subject.parameters.push_back(parameter);
      channels *= 2;
    }
    for (int i = 0; i < 3; ++i) {
      bench::ResBlock block(channels);
      subject.layers.emplace_back([block](const Tensor& x) mutable { return block(x); });
      for (const auto& parameter : block->parameters()) subject.parameters.push_back(parameter);
    }
  }
  subject.seed = torch::randn({4, channels, 8, 8});
  for (const auto& parameter : subject.parameters)
    parameter.mutable_grad() = torch::zeros_like(parameter);
  return subject;
}

/// A cut of the chain, and what a step by it takes.
struct Measured {
  refrain::Segmentation cut;
  std::function<Tensor(Tensor)> chain;
  std::int64_t peak = 0;
  std::vector<double> times;

  [[nodiscard]] double seconds() const { return bench::median(times); }
};

/// How far predicted times are from measured ones, as shares.
struct Closeness {
  double plain = 0;
  double median = 0;
  double worst = 0;
};

/// Every cut is measured once, however often it is asked for.
class Meter {
 public:
  explicit Meter(const Subject& subject) : subject_(subject) {}

  Measured& of(const policy::AnyPolicy& how) {
    auto chain = refrain::checkpoint(subject_.layers, how);
    const auto [place, is_new] = measured_.try_emplace(to_string(chain.cut()));
    Measured& measured = place->second;
    if (!is_new) return measured;
    measured.cut = chain.cut();
    measured.chain = [chain](Tensor x) mutable { return chain(std::move(x)); };
    step(measured);
    zero();
    const auto before = refrain::memory().live.count();
    refrain::reset_peak();
    step(measured);
    measured.peak = refrain::memory().peak.count() - before;
    return measured;
  }

  void time(int repeats) {
    for (int i = 0; i < repeats; ++i) {
      for (auto& [cut, measured] : measured_) {
        zero();
        measured.times.push_back(bench::seconds_of([&] { step(measured); }));
      }
    }
  }

  /// After `time`; `plain` are the measured seconds of a plain step.
  [[nodiscard]] Closeness closeness(const Profile& profile, double plain) const {
    const double predicted_plain = refrain::plain_cost(profile).seconds;
    std::vector<double> off;
    for (const auto& [cut, measured] : measured_) {
      const double predicted =
          refrain::simulate(measured.cut, profile.chain, profile.executor).seconds /
          predicted_plain;
      off.push_back(std::abs(predicted / (measured.seconds() / plain) - 1));
    }
    return {predicted_plain / plain - 1, bench::median(off),
            *std::max_element(off.begin(), off.end())};
  }

 private:
  void step(const Measured& measured) const {
    auto y = measured.chain(subject_.input);
    y.backward(subject_.seed);
  }
  void zero() const {
    for (const auto& parameter : subject_.parameters) parameter.mutable_grad().zero_();
    Tensor(subject_.input).mutable_grad() = Tensor();
  }

  const Subject& subject_;
  std::map<std::string, Measured> measured_;
};

struct Row {
  std::string policy;
  const Measured* fixed = nullptr;
  const Measured* within_peak = nullptr;  ///< The cheapest plan in the policy's peak.
  const Measured* within_time = nullptr;  ///< The leanest plan in the policy's predicted time.
};

std::vector<std::pair<std::string, policy::AnyPolicy>> policies(std::int64_t layers) {
  std::vector<std::pair<std::string, policy::AnyPolicy>> all{{"none", policy::none()},
                                                             {"sqrt_n", policy::sqrt_n()}};
  for (std::int64_t k = 1; k < layers; ++k)
    all.emplace_back(fmt::format("every({})", k), policy::every(k));
  for (std::int64_t k = 2; k <= layers; ++k)
    all.emplace_back(fmt::format("one_in({})", k), policy::one_in(k));
  return all;
}

/// A layer's place in the stages of a profile; policies are compared on chains whose layers are
/// stages.
void require_parted(const Profile& profile) {
  if (profile.layer_count() == profile.chain.size()) return;
  fmt::print(stderr, "some layers of this chain cannot be parted: choose another.\n");
  std::exit(EXIT_FAILURE);
}

json json_of(const Measured& measured) {
  return {{"cut", to_string(measured.cut)},
          {"peak_bytes", measured.peak},
          {"seconds", measured.seconds()}};
}

void run(const Subject& subject, int repeats, json& results) {
  // The step's seed gradient is there before the step and held by it, as is the output.
  const auto profile = refrain::profile(refrain::ProfileOptions().repeats(2 * repeats),
                                        subject.layers, subject.input);
  require_parted(profile);
  const refrain::planner::Frontier frontier(profile.chain, profile.executor);
  const auto plan_at = [&](std::int64_t peak) {
    return Plan(profile, frontier.plan(peak), profile.resident + Bytes(peak));
  };
  Meter meter(subject);
  std::vector<Row> rows;
  for (const auto& [name, how] : policies(profile.layer_count())) {
    const Measured& fixed = meter.of(how);
    const auto predicted = refrain::simulate(fixed.cut, profile.chain, profile.executor);
    const auto points = frontier.points();
    const auto leanest = std::find_if(points.begin(), points.end(), [&](const auto& point) {
      return point.seconds <= predicted.seconds;
    });
    rows.push_back(
        {name, &fixed, &meter.of(plan_at(predicted.peak)), &meter.of(plan_at(leanest->peak))});
  }
  meter.time(repeats);
  const double plain = rows.front().fixed->seconds();
  const json peers =
      subject.has_peer
          ? bench::peer("tradeoff.py", fmt::format("\"{}\" {} segments", subject.name, repeats))
          : json();

  fmt::print("\n### {}: {} layers\n\n", subject.name, profile.layer_count());
  fmt::print(
      "| policy | peak | step | a plan in that peak: peak | step | a plan in that time: peak | "
      "step |\n|---|---|---|---|---|---|---|\n");
  json table = {{"model", subject.name}, {"layers", profile.layer_count()}, {"pytorch", peers}};
  for (const Row& row : rows) {
    const auto cells = [&](const Measured& measured) {
      return fmt::format("{:.2f} MiB | {:.3f}", static_cast<double>(measured.peak) / kMiB,
                         measured.seconds() / plain);
    };
    fmt::print("| {} | {} | {} | {} |\n", row.policy, cells(*row.fixed), cells(*row.within_peak),
               cells(*row.within_time));
    table["rows"].push_back({{"policy", row.policy},
                             {"fixed", json_of(*row.fixed)},
                             {"within_peak", json_of(*row.within_peak)},
                             {"within_time", json_of(*row.within_time)}});
  }
  if (peers.is_array()) {
    for (const auto& row : peers) {
      fmt::print("| {}, PyTorch | {:.2f} MiB | {:.3f} | | | | |\n",
                 row.at("policy").get<std::string>(), row.at("peak_bytes").get<double>() / kMiB,
                 row.at("ratio").get<double>());
    }
  }
  for (const auto& point : frontier.points()) {
    table["frontier"].push_back({{"peak_bytes", point.peak},
                                 {"ratio", point.seconds / refrain::plain_cost(profile).seconds}});
  }
  int leaner = 0;
  int quicker = 0;
  int behind = 0;
  for (const Row& row : rows) {
    leaner += row.within_time->peak < row.fixed->peak ? 1 : 0;
    quicker += row.within_peak->seconds() < row.fixed->seconds() ? 1 : 0;
    const auto peak = std::max(row.within_peak->peak, row.within_time->peak);
    behind += peak > row.fixed->peak + kSmallestBlock ? 1 : 0;
  }
  fmt::print(
      "\nOf {} policies: in {} a plan of no more peak is quicker, in {} a plan of no more "
      "predicted "
      "time is leaner,\nin {} a plan takes more memory than it should.\n",
      rows.size(), quicker, leaner, behind);
  const Closeness closeness = meter.closeness(profile, plain);
  table["seconds_off"] = {
      {"plain", closeness.plain}, {"median", closeness.median}, {"worst", closeness.worst}};
  fmt::print(
      "Predicted step times against measured: plain {:+.1f} %; of the others, in units of plain, "
      "the median "
      "is off by {:.1f} %,\nthe worst by {:.1f} %.\n",
      100 * closeness.plain, 100 * closeness.median, 100 * closeness.worst);
  std::fflush(stdout);
  results.push_back(std::move(table));
}

}  // namespace

int main(int argc, char** argv) {
  bench::keep_memory();
  refrain::count_cpu_memory();
  at::set_num_threads(1);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  auto results = json::array();
  run(subject_of(bench::small_gpt()), repeats, results);
  run(pyramid(), repeats, results);
  const auto path = std::string(REFRAIN_RESULTS) + "/frontier_bench.json";
  std::ofstream(path) << results.dump(2) << "\n";
  fmt::print(
      "\nOne thread, processor time, malloc keeps its memory; medians of {} interleaved steps; "
      "step "
      "is against plain.\n"
      "Numbers in {}; plot_frontier.py draws them.\n",
      repeats, path);
}
