// SPDX-License-Identifier: BSD-3-Clause
#include "support/device_streams.hpp"
#include "support/on_accelerator.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// What the other tests rely on: that the fake accelerator shows a missing order as wrong values,
/// and keeps an order that is there.
namespace {

using support::accelerator;
using support::all_are;
using support::Async;
using support::compute_stream;
using support::fake_device;
using support::filled;
using support::order;
using support::pinned;
using support::record_on;
using support::side_stream;
using torch::Tensor;

constexpr int kRoundsOfFault = 20;   // each has to show it
constexpr int kRoundsInOrder = 200;  // none may fail

class FakeAccelerator : public support::OnAccelerator, public testing::WithParamInterface<Async> {
 protected:
  void SetUp() override {
    OnAccelerator::SetUp();
    scope_.emplace(GetParam());
  }
  void TearDown() override { scope_.reset(); }

  static void settle() {
    for (c10::DeviceIndex device : {0, 1}) accelerator().synchronizeDevice(device);
  }

  /// How many rounds come out right.
  static int right_rounds(int rounds, const std::function<bool()>& round) {
    int right = 0;
    for (int i = 0; i < rounds; ++i) {
      right += round() ? 1 : 0;
      settle();
    }
    return right;
  }
  static void expect_never_right(const std::function<bool()>& round) {
    EXPECT_EQ(right_rounds(kRoundsOfFault, round), 0);
  }
  static void expect_always_right(const std::function<bool()>& round) {
    support::fake::delay_streams(100, /*seed=*/7);
    EXPECT_EQ(right_rounds(kRoundsInOrder, round), kRoundsInOrder);
  }

 private:
  std::optional<support::AsyncScope> scope_;
};

INSTANTIATE_TEST_SUITE_P(Fake, FakeAccelerator, testing::Values(Async::Threads, Async::Lazy),
                         support::mode_name);

// A copy on a side stream reads what the compute stream fills.

TEST_P(FakeAccelerator, ShowsACopyThatDoesNotWaitForItsSource) {
  expect_never_right([] {
    const auto x = filled(1);
    const auto host = pinned();
    settle();
    std::optional<support::fake::Held> late(compute_stream());
    x.add_(6);
    const auto stream = side_stream();
    {
      const c10::StreamGuard guard(stream);
      host.copy_(x, /*non_blocking=*/true);
    }
    stream.synchronize();
    late.reset();
    return all_are(host, 7);
  });
}

TEST_P(FakeAccelerator, RunsACopyThatWaitsForItsSource) {
  expect_always_right([] {
    const auto x = filled(1);
    const auto host = pinned();
    x.add_(6);
    const auto stream = side_stream();
    order(compute_stream(), stream);
    {
      const c10::StreamGuard guard(stream);
      host.copy_(x, /*non_blocking=*/true);
    }
    stream.synchronize();
    return all_are(host, 7);
  });
}

// The compute stream reads what a side stream brings.

TEST_P(FakeAccelerator, ShowsAUseThatDoesNotWaitForTheCopy) {
  expect_never_right([] {
    const auto host = pinned().fill_(7);
    const auto x = filled(1);
    const auto stream = side_stream();
    order(compute_stream(), stream);
    const support::fake::Held late(stream);
    {
      const c10::StreamGuard guard(stream);
      x.copy_(host, /*non_blocking=*/true);
    }
    return all_are((x + 1).cpu(), 8);
  });
}

TEST_P(FakeAccelerator, RunsAUseThatWaitsForTheCopy) {
  expect_always_right([] {
    const auto host = pinned().fill_(7);
    const auto x = filled(1);
    const auto stream = side_stream();
    order(compute_stream(), stream);
    {
      const c10::StreamGuard guard(stream);
      x.copy_(host, /*non_blocking=*/true);
    }
    order(stream, compute_stream());
    return all_are((x + 1).cpu(), 8);
  });
}

// Memory is freed while another stream uses it.

TEST_P(FakeAccelerator, ShowsMemoryFreedWhileACopyReadsIt) {
  expect_never_right([] {
    auto x = filled(7);
    const auto* const memory = x.data_ptr();
    const auto host = pinned();
    const auto stream = side_stream();
    order(compute_stream(), stream);
    {
      const support::fake::Held late(stream);
      const c10::StreamGuard guard(stream);
      host.copy_(x, /*non_blocking=*/true);
      x.reset();
      const c10::StreamGuard back(compute_stream());
      const auto other = filled(3);
      EXPECT_EQ(other.data_ptr(), memory);
      compute_stream().synchronize();
    }
    stream.synchronize();
    return all_are(host, 7);
  });
}

TEST_P(FakeAccelerator, ShowsMemoryFreedWhileACopyReadsItEvenIfNobodyTakesIt) {
  expect_never_right([] {
    auto x = filled(7);
    const auto host = pinned();
    const auto stream = side_stream();
    order(compute_stream(), stream);
    {
      const support::fake::Held late(stream);
      const c10::StreamGuard guard(stream);
      host.copy_(x, /*non_blocking=*/true);
      x.reset();
      compute_stream().synchronize();
    }
    stream.synchronize();
    return all_are(host, 7);
  });
}

TEST_P(FakeAccelerator, ShowsMemoryFreedWhileACopyWritesIt) {
  expect_never_right([] {
    const auto host = pinned().fill_(7);
    auto x = filled(1);
    const auto stream = side_stream();
    order(compute_stream(), stream);
    Tensor other;
    {
      const support::fake::Held late(stream);
      const c10::StreamGuard guard(stream);
      x.copy_(host, /*non_blocking=*/true);
      x.reset();
      const c10::StreamGuard back(compute_stream());
      other = filled(3);
      compute_stream().synchronize();
    }
    stream.synchronize();
    return all_are(other.cpu(), 3);
  });
}

TEST_P(FakeAccelerator, ShowsASideStreamsMemoryFreedWhileTheComputeStreamReadsIt) {
  expect_never_right([] {
    const auto stream = side_stream();
    std::optional<c10::StreamGuard> guard(stream);
    auto x = filled(7);
    order(stream, compute_stream());
    guard.reset();
    Tensor y;
    {
      const support::fake::Held late(compute_stream());
      y = x + 1;
      x.reset();
      stream.synchronize();
    }
    return all_are(y.cpu(), 8);
  });
}

TEST_P(FakeAccelerator, KeepsRecordedMemory) {
  expect_always_right([] {
    auto x = filled(7);
    const auto host = pinned();
    const auto stream = side_stream();
    order(compute_stream(), stream);
    {
      const c10::StreamGuard guard(stream);
      host.copy_(x, /*non_blocking=*/true);
    }
    record_on(x, stream);
    x.reset();
    const auto other = filled(3);
    stream.synchronize();
    return all_are(host, 7) && all_are(other.cpu(), 3);
  });
}

// A pinned buffer is used again while a copy uses it.

TEST_P(FakeAccelerator, ShowsAPinnedBufferFilledTooEarly) {
  expect_never_right([] {
    const auto host = pinned().fill_(7);
    const auto x = filled(1);
    const auto stream = side_stream();
    order(compute_stream(), stream);
    {
      const support::fake::Held late(stream);
      const c10::StreamGuard guard(stream);
      x.copy_(host, /*non_blocking=*/true);
      host.fill_(3);
    }
    order(stream, compute_stream());
    return all_are(x.cpu(), 7);
  });
}

TEST_P(FakeAccelerator, ShowsAPinnedBufferReadTooEarly) {
  expect_never_right([] {
    const auto host = pinned().fill_(1);
    const auto x = filled(7);
    const support::fake::Held late(compute_stream());
    host.copy_(x, /*non_blocking=*/true);
    return all_are(host, 7);
  });
}

TEST_P(FakeAccelerator, RunsAPinnedBufferThatWaits) {
  const auto host = pinned();
  expect_always_right([&] {
    host.fill_(7);
    const auto x = filled(1);
    const auto stream = side_stream();
    order(compute_stream(), stream);
    c10::Event brought(support::kFake);
    {
      const c10::StreamGuard guard(stream);
      x.copy_(host, /*non_blocking=*/true);
      brought.record(stream);
    }
    brought.synchronize();
    host.fill_(3);
    brought.block(compute_stream());
    return all_are(x.cpu(), 7);
  });
}

TEST_P(FakeAccelerator, KeepsAFreedPinnedBufferWhileACopyUsesIt) {
  expect_always_right([] {
    auto host = pinned().fill_(7);
    const auto x = filled(1);
    const auto stream = side_stream();
    order(compute_stream(), stream);
    {
      const c10::StreamGuard guard(stream);
      x.copy_(host, /*non_blocking=*/true);
    }
    host.reset();
    const auto other = pinned().fill_(3);
    order(stream, compute_stream());
    return all_are(x.cpu(), 7);
  });
}

// All of it together.

TEST_P(FakeAccelerator, RunsAPipelineThatSendsAwayAndBringsBack) {
  const auto away = side_stream();
  const auto back = side_stream();
  expect_always_right([&] {
    std::vector<Tensor> buffers;
    std::vector<c10::Event> sent;
    auto x = filled(1);
    for (int i = 0; i < 4; ++i) {
      x = x * 2;
      order(compute_stream(), away);
      const c10::StreamGuard guard(away);
      buffers.push_back(pinned());
      buffers.back().copy_(x, /*non_blocking=*/true);
      record_on(x, away);
      sent.emplace_back(support::kFake).record(away);
    }
    x.reset();
    auto sum = filled(0);
    for (int i = 4; i-- > 0;) {
      auto fetched = torch::empty({64}, fake_device(0));
      order(compute_stream(), back);
      sent[static_cast<std::size_t>(i)].block(back);
      {
        const c10::StreamGuard guard(back);
        fetched.copy_(buffers[static_cast<std::size_t>(i)], /*non_blocking=*/true);
      }
      order(back, compute_stream());
      sum += fetched;
      record_on(fetched, back);
    }
    return all_are(sum.cpu(), 2 + 4 + 8 + 16);
  });
}

// Streams and events.

TEST_P(FakeAccelerator, HasEightSideStreamsADevice) {
  for (c10::DeviceIndex device : {0, 1}) {
    std::set<c10::StreamId> ids;
    for (int i = 0; i < 16; ++i) ids.insert(side_stream(device).id());
    EXPECT_EQ(ids.size(), 8U);
    EXPECT_FALSE(ids.contains(compute_stream(device).id()));
  }
}

TEST_P(FakeAccelerator, HasACurrentStreamForEachThread) {
  const c10::StreamGuard guard(side_stream());
  c10::StreamId elsewhere = -1;
  std::thread([&] { elsewhere = accelerator().getStream(fake_device(0)).id(); }).join();
  EXPECT_EQ(elsewhere, compute_stream().id());
  EXPECT_NE(accelerator().getStream(fake_device(0)).id(), compute_stream().id());
}

TEST_P(FakeAccelerator, AnEventIsDoneWhenItsWorkIs) {
  c10::Event event(support::kFake);
  EXPECT_TRUE(event.query()) << "never recorded";
  const auto x = filled(1);
  settle();
  {
    const support::fake::Held late(compute_stream());
    x.add_(1);
    event.record(compute_stream());
    EXPECT_FALSE(event.query());
    EXPECT_FALSE(compute_stream().query());
  }
  x.add_(1);
  event.synchronize();
  EXPECT_TRUE(event.query());
  compute_stream().synchronize();
  EXPECT_TRUE(compute_stream().query());
}

TEST_P(FakeAccelerator, AnEventThatIsRecordedAgainMoves) {
  const auto x = filled(1);
  c10::Event event(support::kFake);
  event.record(compute_stream());
  event.synchronize();
  const support::fake::Held late(compute_stream());
  x.add_(1);
  event.record(compute_stream());
  EXPECT_FALSE(event.query());
}

TEST_P(FakeAccelerator, StreamsDoNotWaitForEachOther) {
  const auto x = filled(1);
  settle();
  const support::fake::Held late(compute_stream());
  x.add_(1);
  const c10::StreamGuard guard(side_stream());
  EXPECT_TRUE(all_are(filled(5).cpu(), 5));
}

// Devices.

TEST_P(FakeAccelerator, CopiesBetweenDevicesInTheOrderOfBoth) {
  support::fake::copy_rate(1e6);
  for (int i = 0; i < kRoundsOfFault; ++i) {
    const auto x = filled(1, 0);
    x.add_(6);
    const auto y = x.to(fake_device(1), /*non_blocking=*/true);
    x.fill_(0);
    EXPECT_TRUE(all_are((y + 1).cpu(), 8));
  }
}

TEST_P(FakeAccelerator, RefusesAnOperatorOnTwoDevices) {
  EXPECT_THROW(filled(1, 0) + filled(1, 1), c10::Error);
}

// Copies.

TEST_P(FakeAccelerator, PinsHostMemory) {
  const auto fresh = pinned();
  EXPECT_TRUE(fresh.is_pinned());
  EXPECT_TRUE(fresh.narrow(0, 60, 4).is_pinned());
  EXPECT_FALSE(torch::ones({64}).is_pinned());
  const auto made = torch::full({64}, 5.0).pin_memory();
  EXPECT_TRUE(made.is_pinned());
  EXPECT_TRUE(all_are(made.to(fake_device(0), /*non_blocking=*/true).cpu(), 5));
}

TEST_P(FakeAccelerator, CopiesPinnedMemoryLaterIfAsked) {
  const auto x = filled(1);
  const auto host = pinned();
  settle();
  const support::fake::Held late(compute_stream());
  x.copy_(host, /*non_blocking=*/true);
  host.copy_(x, /*non_blocking=*/true);
  EXPECT_FALSE(compute_stream().query());
}

TEST_P(FakeAccelerator, WaitsForOtherCopies) {
  const auto x = filled(1);
  const auto expect_waits = [&](const Tensor& host, bool non_blocking) {
    x.add_(1);
    x.copy_(host, non_blocking);
    EXPECT_TRUE(compute_stream().query());
    x.add_(1);
    host.copy_(x, non_blocking);
    EXPECT_TRUE(compute_stream().query());
  };
  expect_waits(pinned(), /*non_blocking=*/false);
  expect_waits(torch::ones({64}), /*non_blocking=*/true);
  expect_waits(pinned(128).slice(0, 0, 128, 2), /*non_blocking=*/true);
  expect_waits(pinned().to(torch::kDouble), /*non_blocking=*/true);
}

TEST_P(FakeAccelerator, ConvertsAndRearrangesWhileItCopies) {
  const auto x = torch::arange(12).view({3, 4}).to(torch::kFloat);
  const auto y = x.to(fake_device(0)).t().to(torch::kDouble);
  EXPECT_TRUE(torch::equal(y.cpu(), x.t().to(torch::kDouble)));
  const auto host = pinned(12).view({4, 3});
  host.copy_(y, /*non_blocking=*/true);
  EXPECT_TRUE(torch::equal(host, x.t()));
}

// Time.

TEST_P(FakeAccelerator, TakesItsTime) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](const auto& step) {
    settle();
    const auto begin = Clock::now();
    step();
    settle();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto x = filled(1);
  const auto host = pinned();
  support::fake::kernel_seconds(0.005);
  support::fake::copy_rate(64 * 4 / 0.01);
  EXPECT_GE(seconds([&] { x.add_(1).mul_(2); }), 0.01);
  EXPECT_GE(seconds([&] { x.copy_(host, true); }), 0.01);
  EXPECT_GE(seconds([&] { x.to(fake_device(1)); }), 0.01);
  EXPECT_GE(seconds([&] { x.clone(); }), 0.005);
}

// Memory.

TEST_P(FakeAccelerator, CountsFreedMemoryAsFree) {
  settle();
  const auto before = live(0);
  auto x = filled(1);
  EXPECT_EQ(live(0), before + 64 * 4);
  const support::fake::Held late(compute_stream());
  x.add_(1);
  x.reset();
  EXPECT_EQ(live(0), before) << "the stream may use it again at once";
}

TEST_P(FakeAccelerator, CountsRecordedMemoryUntilItsStreamsAreDone) {
  settle();
  const auto before = live(0);
  auto x = filled(1);
  const auto* const memory = x.data_ptr();
  const auto stream = side_stream();
  {
    const support::fake::Held late(stream);
    record_on(x, stream);
    x.reset();
    EXPECT_EQ(live(0), before + 64 * 4);
    EXPECT_NE(filled(2).data_ptr(), memory);
  }
  stream.synchronize();
  EXPECT_EQ(live(0), before);
  EXPECT_EQ(filled(2).data_ptr(), memory);
}

TEST_P(FakeAccelerator, KeepsMemoryForTheStreamThatFreedIt) {
  auto x = filled(1);
  const auto* const memory = x.data_ptr();
  x.reset();
  {
    const c10::StreamGuard guard(side_stream());
    EXPECT_NE(filled(1).data_ptr(), memory);
  }
  EXPECT_EQ(filled(1).data_ptr(), memory);
}

TEST_P(FakeAccelerator, SpoilsFreshAndFreedMemory) {
  const auto fresh = torch::empty({1 << 16}, fake_device(0)).cpu();
  EXPECT_FALSE(torch::equal(fresh, torch::zeros_like(fresh)));
  auto x = filled(7);
  const auto* const memory = x.data_ptr();
  x.reset();
  const auto again = torch::empty({64}, fake_device(0));
  EXPECT_EQ(again.data_ptr(), memory);
  EXPECT_FALSE(all_are(again.cpu(), 7));
}

TEST_P(FakeAccelerator, KeepsWhatATensorHoldsWhenItGrows) {
  const auto x = filled(7);
  x.resize_({128});
  EXPECT_TRUE(all_are(x.narrow(0, 0, 64).cpu(), 7));
}

// Operators.

TEST_P(FakeAccelerator, QueuesOperators) {
  const auto x = torch::rand({8, 8}).to(fake_device(0)).requires_grad_();
  const auto index = torch::tensor({1, 2}).to(fake_device(0));
  const auto classes = torch::tensor({1, 2, 3, 4, 5, 6, 7, 0}).to(fake_device(0));
  const auto step = [&] {
    auto y = torch::layer_norm(x.mm(x).relu() + 1, {8}).softmax(1);
    y = torch::gelu(torch::cat({y, x.t().clone()})).index({index});
    y = torch::where(y > 0, y, 0).matmul(x.sigmoid());
    const auto loss = torch::cross_entropy_loss(torch::embedding(x, classes), classes);
    (y.sum() + std::get<0>(x.max(1)).mean() + loss).backward();
    x.mutable_grad().mul_(2).zero_();
  };
  step();
  support::fake::take_ran_in_caller();
  step();
  EXPECT_EQ(support::fake::take_ran_in_caller(), std::set<std::string>());
  x.detach().clone().normal_();
  EXPECT_EQ(support::fake::take_ran_in_caller(), std::set<std::string>{"aten::normal_"})
      << "it draws from the host's stream";
}

TEST_P(FakeAccelerator, GivesTheSameNumbersAsAtOnce) {
  const auto step = [] {
    torch::manual_seed(20);
    support::fake::generator(0).set_current_seed(20);
    const auto device = fake_device(0);
    const auto table = torch::randn({10, 8}).to(device).requires_grad_();
    const auto w = torch::randn({8, 8}).to(device).requires_grad_();
    const auto words = torch::tensor({1, 2, 3, 1}).to(device);
    auto x = torch::embedding(table, words);
    x = torch::layer_norm(x.mm(w).relu(), {8}) + x;
    x = torch::dropout(torch::gelu(x), 0.5, true).matmul(w.t());
    const auto loss = torch::cross_entropy_loss(x, words) + x.std();
    loss.backward();
    return std::vector<Tensor>{loss.detach().cpu(), table.grad().cpu(), w.grad().cpu()};
  };
  const auto later = step();
  const support::AsyncScope scope(Async::AtOnce);
  const auto at_once = step();
  for (std::size_t i = 0; i < later.size(); ++i) {
    EXPECT_TRUE(torch::equal(later[i], at_once[i])) << "tensor " << i;
  }
}

// Faults.

TEST_P(FakeAccelerator, ThrowsAKernelsExceptionAtTheNextWait) {
  const auto x = filled(1);
  const auto index = torch::tensor({1000}).to(fake_device(0));
  const auto y = x.index_select(0, index);
  EXPECT_THROW(accelerator().synchronizeDevice(0), c10::Error);
  EXPECT_TRUE(all_are(x.cpu(), 1)) << "the next wait is a clean one";
}

TEST_P(FakeAccelerator, ThrowsAWrongCallAtOnce) {
  EXPECT_THROW(filled(1).mm(filled(1)), c10::Error);
}

TEST_P(FakeAccelerator, TellsAtTheScopesEndWhatNobodyWaitedFor) {
  EXPECT_THROW(
      {
        const support::AsyncScope scope(Async::Lazy);
        filled(1).index_select(0, torch::tensor({1000}).to(fake_device(0)));
      },
      c10::Error);
}

}  // namespace
