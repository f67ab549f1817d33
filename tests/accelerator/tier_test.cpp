// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/on_accelerator.hpp"
#include <refrain/bytes.hpp>
#include <refrain/checkpoint.hpp>
#include <refrain/detail/side_streams.hpp>
#include <refrain/error.hpp>
#include <refrain/measure_links.hpp>
#include <refrain/offload.hpp>
#include <refrain/tier/arena.hpp>
#include <refrain/tier/checked.hpp>
#include <refrain/tier/counted.hpp>
#include <refrain/tier/disk.hpp>
#include <refrain/tier/host.hpp>
#include <refrain/tier/limited.hpp>
#include <refrain/tier/quantized.hpp>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace {

using refrain::AnyTier;
using refrain::Bytes;
using refrain::CheckpointOptions;
using refrain::Saved;
using support::fake_device;
using torch::Tensor;
namespace fake = support::fake;
namespace tier = refrain::tier;

constexpr std::int64_t kSide = 64;
constexpr std::int64_t kRow = kSide * kSide * 4;

std::string folder() { return std::filesystem::temp_directory_path().string(); }

std::vector<AnyTier> all_tiers() {
  return {tier::host(),
          tier::host(Bytes(0)),
          tier::arena(Bytes(4 << 20)),
          tier::arena(Bytes(4 << 20), Bytes(0)),
          tier::disk(folder()),
          tier::limited(tier::host(), Bytes(3 * kRow), tier::disk(folder())),
          tier::checked(tier::host())};
}

Tensor block(const Tensor& x, const Tensor& w) { return x.mm(w).tanh().mm(w); }

class TierOnAccelerator : public support::OnAcceleratorInEachMode {
 protected:
  /// Trains a chain of blocks, of which each is wrapped, for one step; gives its gradients.
  static std::vector<Tensor> train(const std::function<Tensor(const Tensor&, const Tensor&)>& call,
                                   c10::DeviceIndex device = 0) {
    std::vector<Tensor> weights;
    for (int i = 0; i < 5; ++i)
      weights.push_back(
          torch::randn({kSide, kSide}).div(8).to(fake_device(device)).requires_grad_());
    const auto x = torch::randn({kSide, kSide}).to(fake_device(device)).requires_grad_();
    Tensor h = x * 2;
    for (const Tensor& w : weights) h = call(h, w);
    h.sum().backward();
    std::vector<Tensor> gradients = {x.grad()};
    for (const Tensor& w : weights) gradients.push_back(w.grad());
    return gradients;
  }

  static void expect_trains(const AnyTier& waits, int rounds) {
    for (const auto& options :
         {CheckpointOptions().tier(waits).saved(Saved::Moved), CheckpointOptions().tier(waits),
          CheckpointOptions(refrain::Route::Function).tier(waits)}) {
      const auto moved = refrain::checkpoint(block, options);
      for (int i = 0; i < rounds; ++i) {
        SCOPED_TRACE(to_string(options));
        expect_same([&] { return train(moved); });
        if (HasFailure()) return;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Each, TierOnAccelerator, support::kEachMode, support::mode_name);

TEST_P(TierOnAccelerator, LinksToADiskLeadToTheDisk) {
  const auto waits = tier::disk(folder());
  const Bytes bytes(std::int64_t{1} << 20);
  const auto links = refrain::measure_links(waits, fake_device(0), bytes);
  EXPECT_TRUE(links.usable());
  EXPECT_GE(waits.bytes_written(), bytes * 3);
  EXPECT_GE(waits.bytes_read(), bytes * 3) << "what came back was on the host still";
}

TEST_P(TierOnAccelerator, MovesAsExactlyAsThePlainRun) {
  for (const AnyTier& waits : all_tiers()) expect_trains(waits, 3);
}

TEST_P(TierOnAccelerator, StaysExactForTwoHundredRounds) {
  for (const AnyTier& waits :
       {AnyTier(tier::host()), AnyTier(tier::arena(Bytes(1 << 20), Bytes(0)))}) {
    const auto moved = refrain::offload(block, waits);
    for (int i = 0; i < 200 && !HasFailure(); ++i) {
      fake::delay_streams(50, /*seed=*/static_cast<std::uint64_t>(i));
      expect_same([&] { return train(moved); });
    }
  }
}

TEST_P(TierOnAccelerator, FreesTheDevicesMemory) {
  for (const bool replays : {false, true}) {
    const auto waits = tier::counted(tier::host(/*on_the_way=*/Bytes(0)));
    auto options = CheckpointOptions().tier(AnyTier(waits));
    if (!replays) options.saved(Saved::Moved);
    auto moved = refrain::checkpoint(block, options);
    const auto w = leaf(0, {kSide, kSide});
    auto h = torch::randn({kSide, kSide}).to(fake_device(0));
    const auto before = live(0);
    constexpr int kLayers = 10;
    for (int i = 0; i < kLayers; ++i) h = moved(h, w);
    const int count = replays ? kLayers - 1 : 2 * kLayers - 1;
    EXPECT_EQ(waits.counts().bytes_moved, Bytes(count * kRow));
    // The result took the input's place; the last input stays; one is on its way.
    EXPECT_EQ(live(0) - before, 2 * kRow);
    h.sum().backward();
    EXPECT_EQ(waits.counts().held, 0);
    EXPECT_EQ(waits.counts().fetched, count);
  }
}

TEST_P(TierOnAccelerator, ServesTwoDevicesInOneBackward) {
  const auto moved = refrain::offload(block, tier::host());
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    expect_same([&] {
      std::vector<Tensor> leaves;
      std::vector<Tensor> ends;
      for (c10::DeviceIndex device = 0; device < 2; ++device) {
        const auto w = leaf(device, {kSide, kSide});
        auto h = leaf(device, {kSide, kSide});
        leaves.push_back(w);
        leaves.push_back(h);
        for (int layer = 0; layer < 3; ++layer) h = moved(h, w * 0.125);
        ends.push_back(h.sum());
      }
      (ends[0] + ends[1].to(fake_device(0))).backward();
      std::vector<Tensor> gradients;
      gradients.reserve(leaves.size());
      for (const Tensor& t : leaves) gradients.push_back(t.grad());
      return gradients;
    });
  }
}

TEST_P(TierOnAccelerator, ServesTwoStreamsInOneRegion) {
  const c10::impl::VirtualGuardImpl guard(support::kFake);
  const auto side = guard.getStreamFromGlobalPool(fake_device(0));
  const auto main = refrain::detail::current_stream(fake_device(0));
  const auto moved = refrain::offload(
      [&](const Tensor& x, const Tensor& w) {
        const Tensor a = x.mm(w).tanh();
        Tensor b;
        refrain::detail::event_on(main)->block(side);
        {
          const c10::StreamGuard other(side);
          b = a.exp().sin();
        }
        refrain::detail::event_on(side)->block(main);
        guard.recordDataPtrOnStream(a.storage().data_ptr(), side);
        guard.recordDataPtrOnStream(b.storage().data_ptr(), main);
        return a * b;
      },
      tier::host());
  for (int i = 0; i < 30 && !HasFailure(); ++i) expect_same([&] { return train(moved); });
}

TEST_P(TierOnAccelerator, ServesTensorsThatAreOnTheHost) {
  const auto moved = refrain::offload(
      [](const Tensor& x, const Tensor& w) {
        const auto host = x.cpu();
        return x.mm(w) + host.sin().exp().tanh().to(x.device());
      },
      tier::arena(Bytes(4 << 20)));
  for (int i = 0; i < 10 && !HasFailure(); ++i) expect_same([&] { return train(moved); });
}

TEST_P(TierOnAccelerator, AQuantizedTierKeepsItsBound) {
  const AnyTier waits = tier::quantized(tier::host(), 8);
  for (int i = 0; i < 5; ++i) {
    const auto x = torch::randn({10000}).to(fake_device(0));
    const auto back = waits.take(x.clone())->get().cpu();
    const auto host = x.cpu();
    EXPECT_LE((back - host).abs().max().item<float>(),
              host.abs().max().item<float>() / 254 * 1.001);
  }
}

TEST_P(TierOnAccelerator, AGraphThatIsDroppedMidwayLeavesNothing) {
  const auto waits = tier::counted(tier::host());
  const auto moved = refrain::offload(block, AnyTier(waits));
  const auto w = leaf(0, {kSide, kSide});
  for (int i = 0; i < 20; ++i) {
    auto h = torch::randn({kSide, kSide}).to(fake_device(0));
    for (int layer = 0; layer < 4; ++layer) h = moved(h, w);
  }
  EXPECT_EQ(waits.counts().held, 0);
  for (int i = 0; i < 5 && !HasFailure(); ++i) expect_same([&] { return train(moved); });
}

TEST_P(TierOnAccelerator, ARoomIsNotUsedAgainWhileItIsStillRead) {
  const AnyTier waits = tier::host(/*on_the_way=*/Bytes(0));
  const auto expected = torch::randn({kSide * kSide});
  const auto push = [&] {  // what was taken before leaves the device
    static_cast<void>(waits.take(torch::zeros({16}).to(fake_device(0))));
  };
  auto item = waits.take(expected.to(fake_device(0)));
  push();
  Tensor back;
  {
    const fake::Held late(refrain::detail::SideStreams::of(fake_device(0)).back);
    back = item->get();
    item.reset();
    const auto other = waits.take(torch::zeros({kSide * kSide}).to(fake_device(1)));
    if (GetParam() == support::Async::Threads)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for a copy to do harm
  }
  EXPECT_TRUE(torch::equal(back.cpu(), expected));
}

TEST_P(TierOnAccelerator, ReadersOnSeveralStreamsAllWaitForTheReturn) {
  const c10::impl::VirtualGuardImpl guard(support::kFake);
  const auto side = guard.getStreamFromGlobalPool(fake_device(0));
  const auto main = refrain::detail::current_stream(fake_device(0));
  const auto moved = refrain::offload(
      [&](const Tensor& x, const Tensor& w) {
        const Tensor a = x.mm(w).tanh();
        const Tensor b = a * 1;  // saved by nothing but what follows
        Tensor c;
        refrain::detail::event_on(main)->block(side);
        {
          const c10::StreamGuard other(side);
          c = b.cos();
        }
        const Tensor d = b.sin();
        refrain::detail::event_on(side)->block(main);
        guard.recordDataPtrOnStream(b.storage().data_ptr(), side);
        guard.recordDataPtrOnStream(c.storage().data_ptr(), main);
        return c * d;
      },
      tier::host(/*on_the_way=*/Bytes(0)));
  for (int i = 0; i < 30 && !HasFailure(); ++i) expect_same([&] { return train(moved); });
}

TEST_P(TierOnAccelerator, AHostTensorWaitsForACopyThatStillUsesItsRoom) {
  const AnyTier waits = tier::arena(Bytes(kRow + 64), /*on_the_way=*/Bytes(0));
  const auto expected = torch::randn({kSide * kSide});
  auto item = waits.take(expected.to(fake_device(0)));
  refrain::detail::current_stream(fake_device(0)).synchronize();
  at::accelerator::synchronizeDevice(0);
  static_cast<void>(waits.take(torch::zeros({16}).to(fake_device(0))));  // the first has left now
  Tensor back;
  std::thread releases;
  {
    const fake::Held late(refrain::detail::SideStreams::of(fake_device(0)).back);
    back = item->get();
    item.reset();
    // It waits for the copy back, so another thread lets that go on.
    releases = std::thread([&] { const auto host = waits.take(torch::zeros({kSide * kSide})); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for a copy to do harm
  }
  releases.join();
  EXPECT_TRUE(torch::equal(back.cpu(), expected));
}

/// A tier whose returns are not ordered behind their copies.
class Forgetful {
 public:
  static std::unique_ptr<refrain::TierItem> take(const Tensor& contents) {
    return std::make_unique<Item>(contents);
  }
  static std::string describe() { return "forgetful"; }

 private:
  struct Item final : refrain::TierItem {
    Tensor host;
    c10::Device device;
    explicit Item(const Tensor& contents)
        : host(contents.cpu().pin_memory()), device(contents.device()) {}
    Tensor get() override {
      auto back = torch::empty({host.numel()}, host.options().device(device));
      const c10::StreamGuard beside(refrain::detail::SideStreams::of(device).back);
      back.copy_(host, /*non_blocking=*/true);
      return back;
    }
  };
};

TEST_P(TierOnAccelerator, ACheckedTierFindsAReturnThatNobodyWaitsFor) {
  if (GetParam() == support::Async::AtOnce) GTEST_SKIP() << "nothing is ever late there";
  const AnyTier waits = tier::checked(AnyTier(Forgetful()));
  for (int i = 0; i < 10; ++i) {
    const auto item = waits.take(torch::randn({kSide * kSide}).to(fake_device(0)).exp());
    const fake::Held late(refrain::detail::SideStreams::of(fake_device(0)).back);
    support::expect_says<refrain::TierError>({"gave back something else than it took"},
                                             [&] { static_cast<void>(item->get()); });
  }
}

}  // namespace
