// SPDX-License-Identifier: BSD-3-Clause
#include "support/on_accelerator.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/memory.hpp>
#include <refrain/record.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace {

using refrain::Bytes;
using support::fake_device;
using torch::Tensor;

class RecordOnAccelerator : public support::OnAcceleratorInEachMode {};

INSTANTIATE_TEST_SUITE_P(Fake, RecordOnAccelerator, support::kEachMode, support::mode_name);

TEST_P(RecordOnAccelerator, TheTimelineIsThatOfTheDeviceInUse) {
  const auto w = leaf(0, {64, 64});
  const auto x = leaf(0, {64, 64});
  auto region = refrain::checkpoint([w](const Tensor& t) { return t.mm(w).sin().exp(); });
  const Bytes before = refrain::memory(fake_device(0)).live;
  const auto ledger = refrain::record([&] {
    const auto loss = region(x).sum();
    loss.backward();
  });
  EXPECT_EQ(ledger.device, fake_device(0).str());
  EXPECT_TRUE(ledger.whole);
  ASSERT_FALSE(ledger.timeline.empty());
  EXPECT_EQ(ledger.timeline.front().live, before);
  ASSERT_EQ(ledger.calls.size(), 1U);
  const Bytes one(64 * 64 * 4);
  EXPECT_EQ(ledger.calls[0].forgotten, one + one);
  EXPECT_EQ(ledger.calls[0].keeps(), one);
  ASSERT_EQ(ledger.calls[0].replays.size(), 1U);
  EXPECT_NE(ledger.calls[0].replays[0].thread, 0) << "the device has a thread of its own";
  ASSERT_EQ(ledger.backward_passes.size(), 1U);
  EXPECT_GE(ledger.peak()->live, before + one);
}

TEST_P(RecordOnAccelerator, RegionsOfTwoDevicesTellOneLedger) {
  const auto w0 = leaf(0, {16, 16});
  const auto w1 = leaf(1, {16, 16});
  const auto x = leaf(0, {16, 16});
  auto a = refrain::checkpoint([w0](const Tensor& t) { return t.mm(w0).sin().exp(); });
  auto b = refrain::checkpoint([w1](const Tensor& t) { return t.mm(w1).sin().exp(); });
  for (int round = 0; round < 20; ++round) {
    const auto ledger = refrain::record([&] {
      const auto loss = a(x).sum().cpu() + b(x.to(fake_device(1))).sum().cpu();
      loss.backward();
    });
    ASSERT_EQ(ledger.calls.size(), 2U);
    for (const auto& call : ledger.calls) {
      EXPECT_EQ(call.replays.size(), 1U);
      EXPECT_EQ(call.forgotten, Bytes(2 * 16 * 16 * 4));
    }
  }
}

}  // namespace
