// SPDX-License-Identifier: BSD-3-Clause
//
// What any way into autograd owes its user, as tests/contract says it of the CPU.
#include "steps.hpp"
#include "support/modules.hpp"
#include "support/run_counter.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/error.hpp>

#include <stdexcept>

namespace gpu_check {
namespace {

using refrain::CheckpointOptions;

support::Mlp mlp(const Where& where, double drop = 0.0) {
  support::Mlp made(64, drop);
  made->to(where.device);
  return made;
}

Tensor body(const Tensor& t) { return t.sin().exp().tanh(); }

/// Counts its runs.
auto counted(const support::RunCounter& ran) {
  return [ran](Tensor t) {
    ++ran;
    return body(t);
  };
}

template <class Error, class Work>
std::string text_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  throw std::runtime_error("nothing was thrown");
}

void gives_the_plain_result(const Where& where, const CheckpointOptions& options) {
  require_same(where, [&] {
    const auto module = mlp(where, 0.3);
    auto layer = refrain::checkpoint(module, options);
    std::vector<Tensor> got;
    for (int i = 0; i < 3; ++i) {
      const auto x = leaf(where, {96, 64});
      const auto y = layer(x);
      loss(y).backward();
      got.push_back(y.detach());
      got.push_back(x.grad());
    }
    note(got, *module);
    return got;
  });
}

void runs_once_more(const Where& where, const CheckpointOptions& options) {
  const support::RunCounter ran;
  const auto y = refrain::checkpoint(counted(ran), options)(leaf(where, {96, 64}));
  require(ran.runs() == 1, "the first run is not one run");
  loss(y).backward();
  require(ran.runs() == 2, fmt::format("{} runs in all, not 2", ran.runs()));
}

void forgets_what_the_body_saved(const Where& where, const CheckpointOptions& options) {
  const auto x = leaf(where, {1'000'000});
  const auto region = refrain::checkpoint([](Tensor t) { return body(t).sum(); }, options);
  region(x).backward();  // whatever is made once is made
  const auto before = live(where);
  const auto y = region(x);
  const auto kept = live(where) - before;
  require(kept < 10'000, fmt::format("{} bytes are kept", kept));
  y.backward();
}

void frees_everything(const Where& where, const CheckpointOptions& options) {
  auto layer = refrain::checkpoint(mlp(where, 0.3), options);
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) loss(layer(leaf(where, {96, 64}))).backward();
  };
  steps(5);
  const auto before = settled_live(where);
  steps(20);
  const auto more = settled_live(where) - before;
  require(more == 0, fmt::format("{} bytes are left", more));
}

void moves_buffers_once(const Where& where, const CheckpointOptions& options) {
  require_same(where, [&] {
    torch::nn::BatchNorm1d norm(64);
    norm->to(where.device);
    auto layer = refrain::checkpoint(norm, options);
    for (int i = 0; i < 2; ++i) loss(layer(leaf(where, {96, 64}))).backward();
    std::vector<Tensor> got;
    note(got, *norm);
    return got;
  });
}

void nests_and_chains(const Where& where, const CheckpointOptions& options) {
  require_same(where, [&] {
    const auto a = mlp(where, 0.2);
    auto inner = refrain::checkpoint(a, options);
    const auto outer =
        refrain::checkpoint([&](Tensor t) { return inner(inner(t.sin())).cos(); }, options);
    const auto after =
        refrain::checkpoint([](Tensor t) { return torch::dropout(t, 0.3, true).exp(); }, options);
    const auto x = leaf(where, {96, 64});
    loss(after(outer(x))).backward();
    std::vector<Tensor> got{x.grad()};
    note(got, *a);
    return got;
  });
}

void goes_backward_twice(const Where& where, const CheckpointOptions& options) {
  const support::RunCounter ran;
  const auto x = leaf(where, {96, 64});
  const auto y = loss(refrain::checkpoint(counted(ran), options)(x));
  y.backward({}, /*retain_graph=*/true);
  const auto once = x.grad().clone();
  y.backward();
  require(torch::equal(x.grad(), once * 2), "the second backward gives another gradient");
  require(ran.runs() <= 3, "more than one replay a backward");
  (void)text_of<std::exception>([&] { y.backward(); });
}

void is_plain_without_grad_mode(const Where& where, const CheckpointOptions& options) {
  const support::RunCounter ran;
  const torch::NoGradGuard no_grad;
  const auto y = refrain::checkpoint(counted(ran), options)(leaf(where, {96, 64}));
  require(!y.requires_grad() && ran.runs() == 1, "it is no plain call");
}

void refuses_a_changed_parameter(const Where& where, const CheckpointOptions& options) {
  torch::nn::Linear linear(64, 64);
  linear->to(where.device);
  const auto y = refrain::checkpoint(linear, options)(leaf(where, {96, 64}));
  {
    const torch::NoGradGuard no_grad;
    linear->weight.add_(1);
  }
  const auto text = text_of<refrain::DivergenceError>([&] { y.sum().backward(); });
  require(text.find("changed") != std::string::npos, "another message: " + text);
}

void hands_on_exceptions(const Where& where, const CheckpointOptions& options) {
  int calls = 0;
  const auto region = refrain::checkpoint(
      [&calls](Tensor t) {
        t = t.sin() * torch::rand_like(t);
        if (++calls == 2) throw std::out_of_range("second run");
        return t.exp().tanh();
      },
      options);
  const auto y = region(leaf(where, {96, 64}));
  const auto generator = at::globalContext().defaultGenerator(where.device);
  const auto before = generator.get_state();
  const auto text = text_of<std::out_of_range>([&] { y.sum().backward(); });
  require(text == "second run", "another message: " + text);
  require(torch::equal(before, generator.get_state()), "the random stream moved");
  gives_the_plain_result(where, options);
}

void survives_what_is_no_exception(const Where& where, const CheckpointOptions& options) {
  const auto region = refrain::checkpoint(
      [](Tensor t) {
        if (refrain::replaying()) throw 42;
        return body(t);
      },
      options);
  const auto y = region(leaf(where, {96, 64}));
  (void)text_of<refrain::Error>([&] { y.sum().backward(); });
}

void differentiates_twice(const Where& where, const CheckpointOptions& options) {
  require_same(where, [&] {
    const auto x = leaf(where, {96, 64});
    const auto y = refrain::checkpoint(body, options)(x);
    const auto first = torch::autograd::grad({loss(y)}, {x}, {}, true, /*create_graph=*/true)[0];
    loss(first).backward();
    return std::vector<Tensor>{first.detach(), x.grad()};
  });
}

using Promise = void (*)(const Where&, const CheckpointOptions&);

void add(Checks& checks, const std::string& name, Promise holds, const CheckpointOptions& options) {
  checks.check(name, [holds, options](const Where& where) {
    torch::manual_seed(20);
    holds(where, options);
    return passed();
  });
}

}  // namespace

void add_contract(Checks& checks) {
  for (const auto route : {refrain::Route::Hooks, refrain::Route::Function}) {
    const CheckpointOptions options(route);
    checks.group(route == refrain::Route::Hooks ? "contract, hooks route"
                                                : "contract, function route");
    add(checks, "gives the plain run's result, gradients and random stream", gives_the_plain_result,
        options);
    add(checks, "runs the body once more in backward", runs_once_more, options);
    add(checks, "forgets what the body saved", forgets_what_the_body_saved, options);
    add(checks, "frees everything after backward", frees_everything, options);
    add(checks, "moves buffers once", moves_buffers_once, options);
    add(checks, "nests and chains", nests_and_chains, options);
    add(checks, "goes backward twice over a retained graph", goes_backward_twice, options);
    add(checks, "is a plain call without grad mode", is_plain_without_grad_mode, options);
    add(checks, "refuses a changed parameter", refuses_a_changed_parameter, options);
    add(checks, "hands on what the replay throws and tidies up", hands_on_exceptions, options);
    add(checks, "survives what is no exception", survives_what_is_no_exception, options);
    if (route == refrain::Route::Hooks)
      add(checks, "differentiates twice", differentiates_twice, options);
  }
}

}  // namespace gpu_check
