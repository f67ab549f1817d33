// SPDX-License-Identifier: BSD-3-Clause
// What is frozen or thawed between forward and backward was not while the region ran: the replay
// saves what the first run did.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/record.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <vector>

namespace {

using torch::Tensor;

class Frozen : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Frozen, support::kBothRoutes, support::route_name);

void freeze(const torch::nn::Module& module, bool frozen) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(!frozen);
}

TEST_P(Frozen, ACriticMayBeFrozenAroundItsForwardAlone) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto mlp = step.watch(support::Mlp(16, 0.0));
    auto critic = wrap(mlp);
    const auto made = step.leaf(torch::randn({8, 16}));
    freeze(*mlp, true);
    const auto loss = critic(made * 2).sum();
    freeze(*mlp, false);
    step.backward(loss);
    step.note("thawed", torch::tensor(mlp->parameters()[0].requires_grad()));
  });
}

TEST_P(Frozen, AModuleMayBeFrozenBeforeBackward) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto mlp = step.watch(support::Mlp(16, 0.0));
    const auto loss = wrap(mlp)(step.leaf(torch::randn({8, 16}))).sum();
    freeze(*mlp, true);
    step.backward(loss);
    step.note("frozen", torch::tensor(mlp->parameters()[0].requires_grad()));
  });
}

// As many tensors of the same shapes: nothing but the gradient would tell.
TEST_P(Frozen, TwoMatricesMayTradePlaces) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto a = torch::randn({8, 8});
    auto b = torch::randn({8, 8}).requires_grad_();
    auto c = torch::randn({8, 8}).requires_grad_();
    const auto y = wrap([&](const Tensor& x) { return x.matmul(a).matmul(c).matmul(b).sin(); })(
        step.leaf(torch::randn({8, 8})));
    a.requires_grad_();
    c.set_requires_grad(false);
    step.backward(y);
    step.note("gradient of b", b.grad());
  });
}

TEST_P(Frozen, AnArgumentMayBeThawedOrFrozen) {
  for (const bool before : {false, true}) {
    support::Twin(options()).of([&](auto wrap, support::Step& step) {
      auto x = torch::randn({8, 8}).set_requires_grad(before);
      const auto w = step.leaf(torch::randn({8, 8}));
      const auto y = wrap([](const Tensor& x, const Tensor& w) { return x.mm(w).sin() * x; })(x, w);
      x.set_requires_grad(!before);
      step.backward(y);
    });
  }
}

}  // namespace
