// SPDX-License-Identifier: BSD-3-Clause
//
// While a CUDA graph is captured, nothing that draws random numbers can be replayed. A region says
// so before anything is wrong.
#include "steps.hpp"
#include "streams.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/error.hpp>

#include <c10/core/StreamGuard.h>

namespace gpu_check {
namespace {

using refrain::CheckpointOptions;

/// Whatever `work` does is captured and thrown away; gives what it threw.
std::string refusal(const CudaOnly& cuda, const std::function<void()>& work) {
  const auto graph = cuda.capture();
  std::string said;
  graph->begin();
  try {
    work();
  } catch (const refrain::Error& error) {
    said = error.what();
  } catch (const std::exception& error) {
    said = std::string("another type was thrown: ") + error.what();
  }
  graph->end();  // throws if the capture was spoilt
  return said;
}

void require_refusal(const std::string& said, const std::string& beginning) {
  require(said.find(beginning) != std::string::npos,
          said.empty() ? "it was not refused" : "another message: " + said);
}

Tensor body(const Tensor& x) { return torch::dropout(x.exp(), 0.5, true).tanh(); }

void require_works(const Where& where) {
  require_same(where, [&] {
    const auto x = leaf(where, {64, 64});
    loss(refrain::checkpoint(body)(x)).backward();
    return std::vector<Tensor>{x.grad()};
  });
}

Outcome refuses_a_call(const Where& where) {
  if (where.cuda == nullptr) return skipped("needs CUDA");
  const c10::StreamGuard beside(new_stream(where));
  const auto x = leaf(where, {64, 64});
  for (const auto route : {refrain::Route::Hooks, refrain::Route::Function}) {
    const auto region = refrain::checkpoint(body, CheckpointOptions().name("decoder").route(route));
    loss(region(x)).backward();
    const auto said = refusal(*where.cuda, [&] { (void)region(x); });
    require_refusal(said, "cannot run `decoder` while a CUDA graph is captured");
    require_works(where);
  }
  return passed("the capture goes on, and the region works afterwards");
}

Outcome refuses_a_replay(const Where& where) {
  if (where.cuda == nullptr) return skipped("needs CUDA");
  const c10::StreamGuard beside(new_stream(where));
  const auto x = leaf(where, {64, 64});
  const auto region = refrain::checkpoint(body, CheckpointOptions().name("decoder"));
  loss(region(x)).backward();
  const auto y = loss(region(x));
  synchronize(where);
  const auto said = refusal(*where.cuda, [&] { y.backward(); });
  require_refusal(said, "cannot replay `decoder` while a CUDA graph is captured");
  require_works(where);
  return passed("the capture goes on, and the region works afterwards");
}

/// The way out that the message names.
Outcome captures_what_ignores_random_numbers(const Where& where) {
  if (where.cuda == nullptr) return skipped("needs CUDA");
  const c10::StreamGuard beside(new_stream(where));
  const auto w = leaf(where, {64, 64});
  const auto x = leaf(where, {64, 64});
  const auto plain = [](const Tensor& t, const Tensor& v) { return t.mm(v).tanh().exp(); };
  const auto region = refrain::checkpoint(plain, refrain::Rng::Ignore);
  const auto step = [&](const auto& call) {
    x.mutable_grad().zero_();
    w.mutable_grad().zero_();
    call(x, w * 0.1).sum().backward();
  };
  x.mutable_grad() = torch::zeros_like(x);
  w.mutable_grad() = torch::zeros_like(w);
  for (int i = 0; i < 3; ++i) step(region);
  step(plain);
  const std::vector<Tensor> expected{x.grad().clone(), w.grad().clone()};
  synchronize(where);
  const auto graph = where.cuda->capture();
  graph->begin();
  step(region);
  graph->end();
  {
    const torch::NoGradGuard no_grad;
    x.mutable_grad().fill_(7);
    w.mutable_grad().fill_(7);
  }
  graph->launch();
  synchronize(where);
  const auto difference = first_difference(expected, {x.grad(), w.grad()});
  require(difference.empty(), "the graph's gradients: " + difference);
  return passed();
}

}  // namespace

void add_graph_capture(Checks& checks) {
  checks.group("graph capture");
  checks.check("a call is refused", refuses_a_call);
  checks.check("a replay that draws is refused", refuses_a_replay);
  checks.check("a region with Rng::Ignore is captured", captures_what_ignores_random_numbers);
}

}  // namespace gpu_check
