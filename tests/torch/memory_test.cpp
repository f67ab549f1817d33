// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/memory.hpp>
#include <refrain/memory_timeline.hpp>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace {

using namespace refrain::literals;
using refrain::Bytes;

Bytes live() { return refrain::memory().live; }

TEST(Memory, CountsATensorWhileItLivesAndNotAfterwards) {
  const auto before = live();
  {
    const auto tensor = at::empty({256, 1024}, at::kFloat);
    EXPECT_EQ(live() - before, 1_MiB);
  }
  EXPECT_EQ(live(), before);
}

TEST(Memory, ViewsAndEmptyTensorsTakeNothing) {
  const auto tensor = at::empty({1024}, at::kFloat);
  const auto before = live();
  const auto view = tensor.view({32, 32}).t();
  const auto nothing = at::empty({0}, at::kFloat);
  EXPECT_EQ(live(), before);
}

TEST(Memory, PeakRemembersWhatIsGoneUntilItIsReset) {
  refrain::reset_peak();
  const auto before = live();
  at::empty({2, 1024, 1024}, at::kByte);
  EXPECT_EQ(refrain::memory().peak - before, 2_MiB);
  refrain::reset_peak();
  EXPECT_EQ(refrain::memory().peak, before);
}

TEST(Memory, CountsBytesOfEveryThread) {
  const auto before = live();
  std::vector<at::Tensor> kept(8);
  std::vector<std::thread> threads;
  for (auto& slot : kept) {
    threads.emplace_back([&slot] {
      for (int i = 0; i < 100; ++i) slot = at::empty({1024}, at::kByte);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(live() - before, 8_KiB);
  std::thread([&] { kept.clear(); }).join();
  EXPECT_EQ(live(), before);
}

TEST(Memory, FollowsAStorageThatGrows) {
  const auto before = live();
  auto tensor = at::empty({1024}, at::kByte);
  tensor.resize_({4096});
  EXPECT_EQ(live() - before, 4_KiB);
}

TEST(Memory, ConvolutionsFindTheirScratch) {
  const auto before = live();
  {
    const auto y = at::conv2d(at::ones({2, 3, 16, 16}), at::ones({8, 3, 3, 3}));
    EXPECT_EQ(y.sum().item<float>(), 2 * 8 * 14 * 14 * 27);
  }
  // oneDNN may keep a small cache of its own between calls.
  EXPECT_LE(live() - before, 1_MiB);
}

TEST(Memory, PoisonMakesFreshBytesNonsense) {
  refrain::count_cpu_memory(refrain::Poison::On);
  const auto fresh = at::empty({4096}, at::kByte);
  const auto* const bytes = fresh.const_data_ptr<std::uint8_t>();
  EXPECT_TRUE(std::all_of(bytes, bytes + 4096, [](auto byte) { return byte == 0xCB; }));
}

TEST(Memory, DataIsAsAlignedAsLibTorchsOwn) {
  for (std::int64_t size : {1, 63, 64, 65, 100'000}) {
    const auto tensor = at::empty({size}, at::kByte);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64, 0U) << size;
  }
}

TEST(Memory, RefusesADeviceThatIsNotHere) {
  if (at::hasXLA())
    GTEST_SKIP() << "this process has an XLA device, the test needs one that is absent";
  try {
    (void)refrain::memory(at::Device(at::kXLA, 0));
    FAIL() << "no error";
  } catch (const refrain::Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("memory() was asked about xla:0"));
  }
}

TEST(MemoryTimeline, WritesDownEveryAllocationAndReleaseInOrder) {
  const auto before = live();
  std::vector<refrain::MemorySample> samples;
  {
    refrain::MemoryTimeline timeline;
    {
      const auto tensor = at::empty({1024}, at::kByte);
    }
    samples = timeline.samples();
    at::empty({1024}, at::kByte);
    EXPECT_EQ(timeline.samples().size(), 5U);
  }
  ASSERT_EQ(samples.size(), 3U);
  EXPECT_EQ(samples[0].live, before);
  EXPECT_EQ(samples[1].live, before + 1_KiB);
  EXPECT_EQ(samples[2].live, before);
  EXPECT_TRUE(std::is_sorted(samples.begin(), samples.end(),
                             [](const auto& a, const auto& b) { return a.seconds < b.seconds; }));
}

TEST(MemoryTimeline, SeveralMayListenAtOnce) {
  std::optional<refrain::MemoryTimeline> outer(std::in_place);
  {
    refrain::MemoryTimeline inner;
    at::empty({8}, at::kByte);
    EXPECT_EQ(inner.samples().size(), 3U);
  }
  at::empty({8}, at::kByte);
  EXPECT_EQ(outer->samples().size(), 5U);
}

}  // namespace
