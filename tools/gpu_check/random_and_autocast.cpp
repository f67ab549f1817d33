// SPDX-License-Identifier: BSD-3-Clause
//
// What a replay must put back: where CUDA's generators stand (a seed and an offset), and autocast.
#include "steps.hpp"
#include "support/modules.hpp"
#include <refrain/checkpoint.hpp>

namespace gpu_check {
namespace {

using refrain::CheckpointOptions;
using refrain::Route;

Outcome draws_the_same_mask(const Where& where, Route route) {
  require_same(where, [&] {
    const auto x = leaf(where, {257, 129});
    const auto region = refrain::checkpoint(
        [](Tensor t) { return torch::dropout(t.exp(), 0.5, true).tanh(); }, route);
    const auto y = region(region(x));
    const auto between = torch::dropout(x.detach(), 0.5, true);
    loss(y).backward();
    return std::vector<Tensor>{y.detach(), x.grad(), between};
  });
  return passed();
}

Outcome keeps_host_and_device_streams(const Where& where) {
  require_same(where, [&] {
    const auto x = leaf(where, {64, 64});
    const auto region = refrain::checkpoint([](Tensor t) {
      const auto from_host = torch::rand({64, 64}).to(t.device());
      return (torch::dropout(t, 0.5, true) * from_host * torch::randn_like(t)).exp();
    });
    loss(region(x)).backward();
    return std::vector<Tensor>{x.grad()};
  });
  return passed();
}

Outcome puts_back_a_generator_of_its_own(const Where& where) {
  if (!where.on_gpu()) return skipped("its generator is a CUDA generator");
  auto mine = at::globalContext().defaultGenerator(where.device).clone();
  require_same(where, [&] {
    mine.set_current_seed(5);
    const auto x = leaf(where, {64, 64});
    const auto region = refrain::checkpoint(
        [mine](Tensor t) { return (t.exp() * at::rand({64, 64}, mine, t.options())).tanh(); },
        CheckpointOptions().generators({mine}));
    loss(region(x)).backward();
    return std::vector<Tensor>{x.grad(), at::rand({4}, mine, x.options())};
  });
  return passed();
}

Outcome restores_seed_and_offset(const Where& where) {
  if (!where.on_gpu()) return skipped("CPU generators have no offset");
  torch::manual_seed(20);
  const auto generator = at::globalContext().defaultGenerator(where.device);
  const auto region =
      refrain::checkpoint([](Tensor t) { return torch::dropout(t, 0.5, true).exp(); });
  const auto y = region(leaf(where, {1000, 1000}));
  auto moved = generator;
  moved.set_current_seed(99);  // backward begins at another seed and another offset
  (void)torch::rand({7}, where.device);
  const auto offset = generator.get_offset();
  y.sum().backward();
  require(generator.current_seed() == 99 && generator.get_offset() == offset,
          fmt::format("seed {} and offset {} after backward, not 99 and {}",
                      generator.current_seed(), generator.get_offset(), offset));
  return passed();
}

/// Two modules: where one is used twice, its gradients are added in the low precision by the plain
/// run, and by the function route in full.
Outcome casts_the_same(const Where& where, at::ScalarType dtype, Route route) {
  require_same(where, [&] {
    support::Mlp first(64, 0.3);
    support::Mlp second(64, 0.3);
    first->to(where.device);
    second->to(where.device);
    auto quiet_first = refrain::checkpoint(first, route);
    auto quiet_second = refrain::checkpoint(second, route);
    const auto x = leaf(where, {96, 64});
    Tensor y;
    {
      const Autocast on(where, dtype);
      y = quiet_second(quiet_first(x));
    }
    loss(y).backward();  // where autocast is off
    std::vector<Tensor> got{y.detach(), x.grad()};
    note(got, *first);
    note(got, *second);
    return got;
  });
  return passed();
}

}  // namespace

void add_random_and_autocast(Checks& checks) {
  checks.group("random numbers");
  checks.check("dropout draws the same mask, hooks route",
               [](const Where& where) { return draws_the_same_mask(where, Route::Hooks); });
  checks.check("dropout draws the same mask, function route",
               [](const Where& where) { return draws_the_same_mask(where, Route::Function); });
  checks.check("seed and offset after backward are the caller's", restores_seed_and_offset);
  checks.check("streams of host and device are kept together", keeps_host_and_device_streams);
  checks.check("a generator of its own is put back", puts_back_a_generator_of_its_own);
  checks.group("autocast");
  for (const auto route : {Route::Hooks, Route::Function}) {
    const char* const name = route == Route::Hooks ? "hooks" : "function";
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      checks.check(
          fmt::format("{} forward, backward outside, {} route",
                      dtype == at::kHalf ? "fp16" : "bf16", name),
          [dtype, route](const Where& where) { return casts_the_same(where, dtype, route); });
    }
  }
}

}  // namespace gpu_check
