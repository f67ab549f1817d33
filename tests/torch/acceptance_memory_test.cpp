// SPDX-License-Identifier: BSD-3-Clause
// K6: what a checkpointed chain keeps and how high it climbs, to the byte. A10 and its siblings.
#include "support/live_bytes.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include <refrain/checkpoint_sequential.hpp>

#include <functional>
#include <vector>

namespace {

using support::live_bytes;
using torch::Tensor;
namespace nn = torch::nn;

class LowMemory : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, LowMemory, support::kBothRoutes, support::route_name);

constexpr int kBlocks = 24;
constexpr std::int64_t kActivation = 256 * 512 * 4;
constexpr std::int64_t kSmall = 64 * 1024;  // allocator headers, scalars, the loss

/// 24 x [Linear(512, 512), GELU] whose gradients exist already, so that they count as base.
struct Chain {
  Chain() {
    for (int i = 0; i < kBlocks; ++i) {
      linears.push_back(nn::Linear(512, 512));
      for (auto& p : linears.back()->parameters()) p.mutable_grad() = torch::zeros_like(p);
    }
  }
  std::vector<nn::Linear> linears;
  Tensor x = torch::randn({256, 512});
};

using Layer = std::function<Tensor(Tensor)>;

struct Use {
  std::int64_t kept;  ///< live after forward, above the base
  std::int64_t peak;  ///< of the whole step, above the base
};

Use step_of(const std::vector<Layer>& layers, const Tensor& x) {
  const auto base = live_bytes();
  std::int64_t kept = 0;
  const auto peak = support::peak_bytes_of([&] {
    auto y = x;
    for (const auto& layer : layers) y = layer(y);
    kept = live_bytes() - base;
    y.sum().backward();
  });
  return {kept, peak};
}

TEST_P(LowMemory, A10_AChainKeepsItsBoundariesAndClimbsByOneBlock) {
  Chain chain;
  std::vector<Layer> plain, quiet_layers;
  for (auto linear : chain.linears) {
    const auto block = [linear](Tensor t) mutable { return torch::gelu(linear(t)); };
    plain.emplace_back(block);
    quiet_layers.emplace_back(quiet(block));
  }
  const auto before = step_of(plain, chain.x);
  const auto use = step_of(quiet_layers, chain.x);
  EXPECT_LE(use.kept, 25 * kActivation + kSmall);
  // One block's own: the rebuilt product, two gradients, and a weight gradient of two activations.
  EXPECT_LE(use.peak, use.kept + 5 * kActivation + kSmall);
  EXPECT_LT(use.peak, before.peak * 6 / 10) << "a block keeps 1 of its 2 tensors";
}

TEST_P(LowMemory, A10_TwoBlocksARegionTakeLessThan45PercentOfPlain) {
  Chain chain;
  std::vector<Layer> plain, quiet_layers;
  for (int i = 0; i < kBlocks; i += 2) {
    const auto pair = [a = chain.linears[i], b = chain.linears[i + 1]](Tensor t) mutable {
      return torch::gelu(b(torch::gelu(a(t))));
    };
    plain.emplace_back(pair);
    quiet_layers.emplace_back(quiet(pair));
  }
  const auto before = step_of(plain, chain.x);
  const auto use = step_of(quiet_layers, chain.x);
  EXPECT_LE(use.kept, 13 * kActivation + kSmall);
  EXPECT_LE(use.peak, use.kept + 7 * kActivation + kSmall);
  EXPECT_LT(use.peak, before.peak * 45 / 100);
}

TEST_P(LowMemory, TheSameInEvaluationMode) {
  auto block = support::Mlp(256);
  block->eval();
  auto layer = quiet(block);
  const auto x = torch::randn({64, 256}).requires_grad_();
  const auto base = live_bytes();
  const auto y = layer(x);
  EXPECT_LE(live_bytes() - base, 64 * 256 * 4 + kSmall) << "the result, nothing else";
}

TEST_P(LowMemory, ARegionKeepsNothingOfAWideInside) {
  const auto x = torch::randn({1000}).requires_grad_();
  auto region = quiet(
      [](Tensor t) { return torch::softmax((t.unsqueeze(0) * t.unsqueeze(1)).sin(), -1).sum(0); });
  const auto base = live_bytes();
  const auto y = region(x);
  EXPECT_LE(live_bytes() - base, 1000 * 4 + kSmall);
}

TEST_P(LowMemory, AnInputThatNothingElseHoldsDiesWithTheGraph) {
  c10::weak_intrusive_ptr<c10::TensorImpl> input(c10::intrusive_ptr<c10::TensorImpl>{});
  auto region = quiet([](Tensor t) { return t.sin().exp(); });
  {
    auto x = torch::randn({4}).requires_grad_();
    input = c10::weak_intrusive_ptr<c10::TensorImpl>(x.getIntrusivePtr());
    const auto y = region(x);
    x.reset();
    EXPECT_FALSE(input.expired());
    y.sum().backward();
  }
  EXPECT_TRUE(input.expired());
}

TEST_P(LowMemory, WhatTheBodyCapturesDiesWithTheGraph) {
  auto captured = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = captured;
  const auto x = torch::randn({4}).requires_grad_();
  auto y = quiet([captured](Tensor t) { return t.sin() * *captured; })(x);
  captured.reset();
  EXPECT_FALSE(watch.expired());
  y.sum().backward();
  y.reset();
  EXPECT_TRUE(watch.expired());
}

TEST_P(LowMemory, RebuiltTensorsAreFreedOneByOne) {
  // Six saved activations of one region; while the gradient of the first op is computed, the five
  // later ones must be gone.
  constexpr std::int64_t kOne = 1'000'000;
  const auto x = torch::randn({kOne / 4}).requires_grad_();
  std::int64_t base = 0;
  std::vector<std::int64_t> live;
  auto region = quiet([&](Tensor t) {
    for (int i = 0; i < 6; ++i) {
      t = t.sin();
      t.register_hook([&](const Tensor&) { live.push_back(live_bytes() - base); });
    }
    return t;
  });
  const auto y = region(x);
  base = live_bytes();
  y.sum().backward();
  ASSERT_EQ(live.size(), 6U);
  for (std::size_t i = 2; i < live.size(); ++i) {  // the first gradient comes before the replay
    EXPECT_LE(live[i], live[i - 1] - kOne / 2) << "at gradient " << i;
  }
}

TEST_P(LowMemory, ALetGoResultFreesTheRegionAtOnce) {
  const auto x = torch::randn({1000}).requires_grad_();
  auto region = quiet([](Tensor t) { return t.sin().exp(); });
  region(x).sum().backward();
  const auto base = live_bytes();
  region(x);
  EXPECT_EQ(live_bytes(), base);
}

}  // namespace
