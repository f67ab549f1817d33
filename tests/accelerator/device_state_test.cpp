// SPDX-License-Identifier: BSD-3-Clause
#include "support/on_accelerator.hpp"
#include "support/run_counter.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/verify.hpp>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace {

using support::fake_device;
using support::RunCounter;
using torch::Tensor;

class DeviceState : public support::OnAcceleratorInEachMode {};

INSTANTIATE_TEST_SUITE_P(Fake, DeviceState, support::kEachMode, support::mode_name);

TEST_P(DeviceState, DropoutDrawsTheSameMaskInTheReplay) {
  expect_same([&] {
    const auto x = leaf(0);
    const auto region =
        refrain::checkpoint([](Tensor t) { return torch::dropout(t.exp(), 0.5, true).tanh(); });
    const auto y = region(region(x));
    const auto between = torch::dropout(x.detach(), 0.5, true);
    y.sum().backward();
    return std::vector<Tensor>{y.detach(), x.grad(), between,
                               torch::dropout(x.detach(), 0.5, true)};
  });
}

TEST_P(DeviceState, RandomStreamsOfBothDevicesAreKept) {
  expect_same([&] {
    const auto x = leaf(0);
    const auto w = leaf(1);
    const auto region = refrain::checkpoint([](Tensor t, Tensor v) {
      return torch::dropout(torch::dropout(t, 0.5, true).to(fake_device(1)) * v, 0.5, true).tanh();
    });
    region(x, w).sum().backward();
    return std::vector<Tensor>{x.grad(), w.grad()};
  });
}

TEST_P(DeviceState, HostAndDeviceStreamsAreKeptTogether) {
  expect_same([&] {
    const auto x = leaf(0);
    const auto region = refrain::checkpoint([](Tensor t) {
      return (torch::dropout(t, 0.5, true) * torch::rand({4, 4}).to(t.device())).exp();
    });
    region(x).sum().backward();
    return std::vector<Tensor>{x.grad(), torch::rand({3})};
  });
}

TEST_P(DeviceState, OneRegionMaySpanTwoDevices) {
  RunCounter ran;
  expect_same([&] {
    const auto x = leaf(0);
    const auto w = leaf(1);
    ran.reset();
    const auto region = refrain::checkpoint([ran](Tensor t, Tensor v) {
      ++ran;
      return t.exp().tanh().to(fake_device(1)).mm(v).tanh();
    });
    region(x, w).sum().backward();
    return std::vector<Tensor>{x.grad(), w.grad()};
  });
  EXPECT_EQ(ran.runs(), 2);
}

TEST_P(DeviceState, TwoDevicesMayAskForOneReplayAtTheSameTime) {
  RunCounter ran;
  const auto region = refrain::checkpoint([ran](Tensor t, Tensor v) {
    ++ran;
    for (int i = 0; i < 3; ++i) t = t.tanh(), v = v.tanh();
    return std::pair(t, v);
  });
  for (int i = 0; i < 100; ++i) {
    expect_same([&] {
      ran.reset();
      const auto x = leaf(0);
      const auto w = leaf(1);
      const auto [a, b] = region(x, w);
      torch::autograd::backward({a.sum(), b.sum()}, {{}, {}});
      return std::vector<Tensor>{x.grad(), w.grad()};
    });
    ASSERT_EQ(ran.runs(), 2);
  }
}

TEST_P(DeviceState, RegionsOnTwoDevicesReplaySideBySide) {
  const auto region =
      refrain::checkpoint([](Tensor t) { return torch::dropout(t.exp().tanh(), 0.3, true).sin(); });
  for (int i = 0; i < 50; ++i) {
    expect_same([&] {
      std::vector<Tensor> leaves;
      std::vector<Tensor> losses;
      for (c10::DeviceIndex device : {0, 1}) {
        leaves.push_back(leaf(device));
        losses.push_back(region(region(leaves.back())).sum());
      }
      torch::autograd::backward(losses, {{}, {}});
      return std::vector<Tensor>{leaves[0].grad(), leaves[1].grad()};
    });
  }
}

TEST_P(DeviceState, RegionsOnTwoDevicesDrawFromTheHostsStreamSideBySide) {
  const auto region = refrain::checkpoint([](Tensor t) {
    for (int i = 0; i < 3; ++i) t = (t * torch::rand({4, 4}).to(t.device())).tanh();
    return t;
  });
  for (int i = 0; i < 100; ++i) {
    expect_same([&] {
      std::vector<Tensor> leaves;
      std::vector<Tensor> losses;
      for (c10::DeviceIndex device : {0, 1}) {
        leaves.push_back(leaf(device));
        losses.push_back(region(leaves.back()).sum());
      }
      torch::autograd::backward(losses, {{}, {}});
      return std::vector<Tensor>{leaves[0].grad(), leaves[1].grad(), torch::rand({2})};
    });
    if (HasFailure()) return;
  }
}

TEST_P(DeviceState, TwoThreadsMayStepOneRegionOnOneDevice) {
  const auto region = refrain::checkpoint([](Tensor t) { return t.exp().tanh().sin(); });
  const auto step = [&](const Tensor& x) {
    for (int i = 0; i < 30; ++i) region(region(x)).sum().backward();
  };
  const auto x = leaf(0);
  const auto y = x.detach().clone().requires_grad_();
  std::thread other([&] { step(y); });
  step(x);
  other.join();
  EXPECT_TRUE(torch::equal(x.grad().cpu(), y.grad().cpu()));
}

TEST_P(DeviceState, AReplayRunsOnTheStreamOfItsForward) {
  const c10::Stream side =
      c10::impl::VirtualGuardImpl(support::kFake).getStreamFromGlobalPool(fake_device(0));
  std::vector<c10::StreamId> ran_on;
  const auto region = refrain::checkpoint([&](Tensor x) {
    ran_on.push_back(c10::impl::VirtualGuardImpl(support::kFake).getStream(fake_device(0)).id());
    return x.exp();
  });
  const auto x = leaf(0);
  const auto y = [&] {
    const c10::StreamGuard guard(side);
    return region(x);
  }();
  y.sum().backward();
  EXPECT_EQ(ran_on, (std::vector<c10::StreamId>{side.id(), side.id()}));
}

TEST_P(DeviceState, ARegionKeepsItsArgumentAndItsResult) {
  const auto x = leaf(0, {64, 64});
  const auto chain = [](Tensor t) {
    for (int i = 0; i < 6; ++i) t = t.tanh();
    return t;
  };
  const auto before = live(0);
  const auto y = refrain::checkpoint(chain)(x);
  EXPECT_EQ(live(0) - before, 64 * 64 * 4);
  refrain::reset_peak(fake_device(0));
  y.sum().backward();
  EXPECT_GE(refrain::memory(fake_device(0)).peak.count() - before, 6 * 64 * 64 * 4);
}

TEST_P(DeviceState, RebuiltTensorsGoAsTheirNodesFinish) {
  const auto x = leaf(0, {64, 64});
  constexpr std::int64_t kTensor = 64 * 64 * 4;
  std::vector<std::int64_t> seen;
  const auto region = refrain::checkpoint([&](Tensor t) {
    for (int i = 0; i < 6; ++i) {
      t = t.tanh();
      if (!refrain::replaying()) {
        t.register_hook([&](const Tensor& g) {
          seen.push_back(live(0) / kTensor);
          return g;
        });
      }
    }
    return t;
  });
  const auto y = region(x);
  y.sum().backward();
  ASSERT_EQ(seen.size(), 6U);
  for (std::size_t i = 2; i < seen.size(); ++i) EXPECT_LT(seen[i], seen[i - 1]) << "at node " << i;
}

TEST_P(DeviceState, VerifyComparesARegionThatWritesABuffer) {
  auto count = torch::zeros({4, 4}, fake_device(0));
  const auto region = refrain::checkpoint([count](Tensor t) mutable {
    {
      const torch::NoGradGuard no_grad;
      count.add_(1);
    }
    return (t * count).exp().tanh();
  });
  const auto report = refrain::verify(region, leaf(0));
  EXPECT_TRUE(report.ok()) << fmt::format("{}", report);
  EXPECT_EQ(report.checkpointed.replays, 1U);
}

}  // namespace
