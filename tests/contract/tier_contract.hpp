// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/live_bytes.hpp"
#include "support/twin.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/offload.hpp>
#include <refrain/tier.hpp>
#include <refrain/tier/counted.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

/// What any storage tier owes the rest of the library. A tier instantiates it with a type that has
/// `static refrain::AnyTier make()` and says whether it frees memory of the host (`kFrees`) when it
/// takes a tensor that is there.
template <class Way>
class TierContract : public testing::Test {
 protected:
  using Tensor = torch::Tensor;

  void SetUp() override { torch::manual_seed(20); }

  /// Moves a copy of `tensor`, which is flat.
  static std::unique_ptr<refrain::TierItem> take(const refrain::AnyTier& tier,
                                                 const Tensor& tensor) {
    return tier.take(tensor.clone());
  }

  static refrain::CheckpointOptions moved() {
    return refrain::CheckpointOptions().tier(Way::make()).saved(refrain::Saved::Moved);
  }
  static std::vector<refrain::CheckpointOptions> ways() {
    return {moved(), refrain::CheckpointOptions().tier(Way::make()),
            refrain::CheckpointOptions(refrain::Route::Function).tier(Way::make())};
  }
  template <class Body>
  static void same_in_all_ways(const Body& body) {
    for (const auto& options : ways()) support::Twin(options).of(body);
  }
};

namespace tier_contract {

/// Saves its input and one more tensor as large.
inline torch::Tensor block(const torch::Tensor& x, const torch::Tensor& w) {
  return x.mm(w).tanh().mm(w);
}

}  // namespace tier_contract

TYPED_TEST_SUITE_P(TierContract);

TYPED_TEST_P(TierContract, GivesBackWhatItTook) {
  const auto tier = TypeParam::make();
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                           torch::kLong, torch::kBool, torch::kByte, torch::kComplexFloat}) {
    for (const std::int64_t count : {1, 7, 1024, 4095, 100003}) {
      const auto tensor = torch::arange(count).remainder(251).to(dtype);
      const auto item = this->take(tier, tensor);
      ASSERT_NE(item, nullptr);
      const auto back = item->get();
      EXPECT_EQ(back.scalar_type(), dtype);
      EXPECT_EQ(back.dim(), 1);
      EXPECT_TRUE(torch::equal(back, tensor)) << dtype << " " << count;
    }
  }
}

TYPED_TEST_P(TierContract, HoldsWhatItSays) {
  const auto tier = TypeParam::make();
  const auto piece = torch::ones({64 << 10}, torch::kByte);
  const auto most = std::min(tier.capacity(), refrain::Bytes(std::int64_t{16} << 20));
  std::vector<std::unique_ptr<refrain::TierItem>> items;
  for (auto held = piece.numel(); held <= most.count(); held += piece.numel())
    ASSERT_NE(items.emplace_back(this->take(tier, piece)), nullptr);
  EXPECT_GT(items.size(), 1);
  for (const auto& item : items) EXPECT_TRUE(torch::equal(item->get(), piece));
}

TYPED_TEST_P(TierContract, HoldsManyAtOnceAndGivesThemInAnyOrder) {
  const auto tier = TypeParam::make();
  std::vector<torch::Tensor> tensors;
  std::vector<std::unique_ptr<refrain::TierItem>> items;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(torch::randn({1 + i * 977}));
    items.push_back(this->take(tier, tensors.back()));
  }
  for (const int step : {7, 11, 39}) {
    for (int n = 0, i = 0; n < 40; ++n, i = (i + step) % 40) {
      if (n % 3 == 0) items[static_cast<std::size_t>((i + step) % 40)]->fetch();
      EXPECT_TRUE(torch::equal(items[static_cast<std::size_t>(i)]->get(),
                               tensors[static_cast<std::size_t>(i)]));
    }
  }
  for (std::size_t i = 0; i < items.size(); i += 2) items[i].reset();
  for (std::size_t i = 0; i < items.size(); i += 2) items[i] = this->take(tier, tensors[i] + 1);
  for (std::size_t i = 0; i < items.size(); ++i)
    EXPECT_TRUE(torch::equal(items[i]->get(), i % 2 == 0 ? tensors[i] + 1 : tensors[i]));
}

TYPED_TEST_P(TierContract, WhatIsFetchedNeedNotBeAskedFor) {
  const auto tier = TypeParam::make();
  for (int i = 0; i < 20; ++i) {
    const auto item = this->take(tier, torch::randn({20000}));
    item->fetch();
    item->fetch();
  }
  for (int i = 0; i < 20; ++i) const auto never_asked = this->take(tier, torch::randn({20000}));
}

TYPED_TEST_P(TierContract, MovesAsExactlyAsThePlainRun) {
  this->same_in_all_ways([](auto wrap, support::Step& step) {
    auto h = step.leaf(torch::randn({512, 64})) * 2;
    for (int i = 0; i < 5; ++i) {
      const auto w = step.leaf(torch::randn({64, 64}).div(8));
      auto layer = wrap([w](const torch::Tensor& x) {
        return torch::dropout(tier_contract::block(x, w), 0.2, true);
      });
      h = layer(h);
    }
    step.backward(h);
  });
}

TYPED_TEST_P(TierContract, ViewsComeBackWithTheirOwnSizesAndStrides) {
  this->same_in_all_ways([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({64, 64}));
    const auto row = step.leaf(torch::randn({1, 2048}));
    const auto whole = step.leaf(torch::randn({96, 64}));
    auto gram = wrap([](const torch::Tensor& a) { return a.matmul(a.t()); });
    auto expanded = wrap([](const torch::Tensor& a) {
      const auto wide = a.expand({3, 2048});
      return wide.sin() * wide;
    });
    auto slices = wrap([](const torch::Tensor& a) {
      const auto middle = a.narrow(0, 8, 64);
      const auto odd = a.slice(1, 1, 64, 2).t();
      return middle.exp().mm(a.t()).sum() + odd.mm(a).tanh().sum() + (a * a.flip(0)).sum();
    });
    step.backward(gram(x * 2), expanded(row * 2), slices(whole * 2));
  });
}

TYPED_TEST_P(TierContract, ServesASecondBackwardAndSecondDerivatives) {
  this->same_in_all_ways([](auto wrap, support::Step& step) {
    auto h = step.leaf(torch::randn({128, 64})) * 2;
    for (int i = 0; i < 2; ++i) {
      const auto w = step.leaf(torch::randn({64, 64}).div(8));
      auto layer = wrap([w](const torch::Tensor& t) { return tier_contract::block(t, w); });
      h = layer(h) * 1;
    }
    const auto y = h.sum();
    y.backward({}, /*retain_graph=*/true);
    y.backward({}, /*retain_graph=*/true);
    y.backward();
  });
  support::Twin(this->moved()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({64, 64}));
    auto layer = wrap([](const torch::Tensor& t) { return t.sin().exp().mm(t); });
    const auto y = layer(x * 2).sum();
    const auto first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    step.backward(first.pow(2));
  });
}

TYPED_TEST_P(TierContract, FreesTheMemoryOfWhatItTakes) {
  if (!TypeParam::kFrees) GTEST_SKIP() << "it leaves what is on the host where it is";
  for (const bool replays : {false, true}) {
    const auto tier = refrain::tier::counted(TypeParam::make());
    auto options = refrain::CheckpointOptions().tier(tier);
    if (!replays) options.saved(refrain::Saved::Moved);
    const auto w = torch::randn({64, 64}).div(8).requires_grad_();
    auto layer = refrain::checkpoint(
        [w](const torch::Tensor& x) { return tier_contract::block(x, w); }, options);
    constexpr std::int64_t kBytes = 512 * 64 * 4;
    constexpr int kLayers = 12;
    auto h = torch::randn({512, 64});
    const auto before = support::live_bytes();
    for (int i = 0; i < kLayers; ++i) h = layer(h);
    // What still is on its way to a disk waits for its thread: until all has been taken.
    const auto counts = tier.counts();
    const int moved = replays ? kLayers - 1 : 2 * kLayers - 1;
    EXPECT_EQ(counts.moved, moved) << "the input of the last stays";
    EXPECT_EQ(counts.bytes_moved, refrain::Bytes(moved * kBytes));
    for (int i = 0; i < 2000 && support::live_bytes() > before + kBytes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_LE(support::live_bytes(), before + kBytes);
    h.sum().backward();
    EXPECT_EQ(tier.counts().held, 0);
    EXPECT_EQ(tier.counts().fetched, moved) << "each came back once";
  }
}

TYPED_TEST_P(TierContract, AnExceptionInTheBodyLeavesNothingBehind) {
  const auto tier = refrain::tier::counted(TypeParam::make());
  auto options = refrain::CheckpointOptions().tier(tier).saved(refrain::Saved::Moved);
  bool throws = true;
  auto layer = refrain::checkpoint(
      [&throws](const torch::Tensor& x) {
        const auto y = x.sin().exp().tanh().sin();
        if (throws) throw std::runtime_error("the body's own");
        return y.exp();
      },
      options);
  const auto x = torch::randn({128, 64}).requires_grad_();
  EXPECT_THROW(layer(x * 2), std::runtime_error);
  EXPECT_EQ(tier.counts().held, 0);
  throws = false;
  layer(x * 2).sum().backward();
  const auto expected = [&] {
    const auto leaf = x.detach().clone().requires_grad_();
    (leaf * 2).sin().exp().tanh().sin().exp().sum().backward();
    return leaf.grad();
  }();
  EXPECT_TRUE(torch::equal(x.grad(), expected));
  EXPECT_EQ(tier.counts().held, 0);
}

TYPED_TEST_P(TierContract, ServesTwoThreadsAtOnce) {
  const auto tier = refrain::tier::counted(TypeParam::make());
  const auto train = [&tier](int seed) {
    const auto w = torch::full({64, 64}, 0.01 * seed).requires_grad_();
    auto layer = refrain::offload(
        [w](const torch::Tensor& x) { return tier_contract::block(x, w); }, refrain::AnyTier(tier));
    for (int round = 0; round < 20; ++round) {
      const auto run = [&](auto&& call) {
        auto h = torch::full({64, 64}, 0.5);
        for (int i = 0; i < 4; ++i) h = call(h);
        h.sum().backward();
        return std::exchange(w.mutable_grad(), {});
      };
      const auto moved = run(layer);
      const auto plain = run([&](const torch::Tensor& x) { return tier_contract::block(x, w); });
      EXPECT_TRUE(torch::equal(moved, plain));
    }
  };
  std::thread other([&] { train(2); });
  train(3);
  other.join();
  EXPECT_EQ(tier.counts().held, 0);
}

TYPED_TEST_P(TierContract, SaysWhatItIs) { EXPECT_FALSE(TypeParam::make().describe().empty()); }

REGISTER_TYPED_TEST_SUITE_P(TierContract, GivesBackWhatItTook, HoldsWhatItSays,
                            HoldsManyAtOnceAndGivesThemInAnyOrder, WhatIsFetchedNeedNotBeAskedFor,
                            MovesAsExactlyAsThePlainRun, ViewsComeBackWithTheirOwnSizesAndStrides,
                            ServesASecondBackwardAndSecondDerivatives, FreesTheMemoryOfWhatItTakes,
                            AnExceptionInTheBodyLeavesNothingBehind, ServesTwoThreadsAtOnce,
                            SaysWhatItIs);
