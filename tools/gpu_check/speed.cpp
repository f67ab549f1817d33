// SPDX-License-Identifier: BSD-3-Clause
//
// What a region costs beyond its second forward, and what a full recompute costs a real step.
#include "models.hpp"
#include "steps.hpp"
#include <refrain/checkpoint.hpp>

namespace gpu_check {
namespace {

using refrain::CheckpointOptions;

enum class Draws { No, Yes };

/// Of two tiny operators, where nothing else takes time: what a checkpointed step takes beyond a
/// plain step and a second forward, in microseconds.
Outcome region_overhead(const Where& where, Draws draws, const CheckpointOptions& options) {
  constexpr int kSteps = 100;
  const auto body = [draws](const Tensor& x) {
    return draws == Draws::Yes ? torch::dropout(x.sin(), 0.5, true) : x.sin().sin();
  };
  const auto x = leaf(where, {4, 4});
  const auto seed = torch::ones({4, 4}, where.device);
  const auto region = refrain::checkpoint(body, options);
  const auto repeat = [](const std::function<void()>& once) {
    return std::function<void()>([once] {
      for (int i = 0; i < kSteps; ++i) once();
    });
  };
  const auto took =
      medians(where, where.size(25, 5),
              {repeat([&] { (void)body(x); }), repeat([&] { body(x).backward(seed); }),
               repeat([&] { region(x).backward(seed); })});
  const auto microseconds = [&](std::size_t i) { return took[i] / kSteps * 1e6; };
  return at_most(30, microseconds(2) - microseconds(1) - microseconds(0), "µs",
                 fmt::format("forward {:.1f} µs, plain step {:.1f} µs, checkpointed step {:.1f} µs",
                             microseconds(0), microseconds(1), microseconds(2)));
}

Outcome full_recompute(const Where& where) {
  torch::manual_seed(1);
  const auto width = where.size<std::int64_t>(2048, 64);
  const auto dtype = where.size(at::kBFloat16, at::kFloat);
  std::vector<bench::GptBlock> plain;
  std::vector<refrain::Checkpoint<bench::GptBlock>> quiet;
  const int layers = where.size(8, 4);
  for (int i = 0; i < layers; ++i) {
    plain.emplace_back(width, where.size<std::int64_t>(16, 4));
    plain.back()->to(where.device, dtype);
    quiet.push_back(refrain::checkpoint(plain.back()));
  }
  const auto x = torch::randn({where.size(4, 2), where.size(2048, 64), width}, where.device)
                     .to(dtype)
                     .requires_grad_();
  const auto step = [&](auto& blocks) {
    Tensor h = x;
    for (auto& block : blocks) h = block(h);
    h.square().mean().backward();
  };
  const auto took = medians(where, where.size(11, 3), {[&] { step(plain); }, [&] { step(quiet); }});
  const auto peak = peak_of(where, [&] { step(plain); });
  const auto quiet_peak = peak_of(where, [&] { step(quiet); });
  return at_most(
      25, 100 * (took[1] / took[0] - 1), "% of a step",
      fmt::format("plain {:.2f} ms and {}, replayed {:.2f} ms and {} at the peak", took[0] * 1e3,
                  refrain::Bytes(peak), took[1] * 1e3, refrain::Bytes(quiet_peak)));
}

}  // namespace

void add_speed(Checks& checks) {
  checks.group("speed");
  checks.check("overhead of a region",
               [](const Where& where) { return region_overhead(where, Draws::No, {}); });
  checks.check("overhead of a region that draws random numbers",
               [](const Where& where) { return region_overhead(where, Draws::Yes, {}); });
  checks.check("overhead of a region, Rng::Ignore", [](const Where& where) {
    return region_overhead(where, Draws::No, refrain::Rng::Ignore);
  });
  checks.check("full recompute of GPT blocks", full_recompute);
}

}  // namespace gpu_check
