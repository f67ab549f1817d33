// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/on_accelerator.hpp"
#include "support/run_counter.hpp"
#include <refrain/checkpoint.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

namespace {

using support::fake_device;
using support::RunCounter;
using torch::Tensor;

class DeviceThreads : public support::OnAcceleratorInEachMode {};

struct MyError : std::runtime_error {
  using std::runtime_error::runtime_error;
  int code = 7;
};

INSTANTIATE_TEST_SUITE_P(Fake, DeviceThreads, support::kEachMode, support::mode_name);

TEST_P(DeviceThreads, ReplayARegionOnTheDevicesThread) {
  const auto caller = std::this_thread::get_id();
  std::thread::id replayed_on;
  const auto region = refrain::checkpoint([&](Tensor x) {
    if (refrain::replaying()) replayed_on = std::this_thread::get_id();
    return x.exp().tanh();
  });
  region(leaf(0)).sum().backward();
  EXPECT_NE(replayed_on, std::thread::id());
  EXPECT_NE(replayed_on, caller);
}

TEST_P(DeviceThreads, GiveThePlainRunsGradients) {
  for (const auto stop : {refrain::EarlyStop::On, refrain::EarlyStop::Off}) {
    expect_same([&] {
      const auto x = leaf(0);
      const auto w = leaf(0);
      const auto region =
          refrain::checkpoint([w](Tensor t) { return t.mm(w).tanh().softmax(-1); }, stop);
      const auto y = region(region(x));
      y.square().sum().backward();
      return std::vector<Tensor>{y.detach(), x.grad(), w.grad()};
    });
  }
}

TEST_P(DeviceThreads, GiveThePlainRunsGradientsOnTheFunctionRoute) {
  expect_same([&] {
    const auto x = leaf(0);
    const auto w = leaf(0);
    const auto region =
        refrain::checkpoint([w](Tensor t) { return t.mm(w).tanh(); }, refrain::Route::Function);
    region(x).square().sum().backward();
    return std::vector<Tensor>{x.grad(), w.grad()};
  });
}

TEST_P(DeviceThreads, EndNestedRegionsToo) {
  expect_same([&] {
    const auto x = leaf(0);
    const auto inner = refrain::checkpoint([](Tensor t) { return t.sin().exp(); });
    const auto outer =
        refrain::checkpoint([inner](Tensor t) { return inner(inner(t).tanh()).tanh(); });
    outer(x).sum().backward();
    return std::vector<Tensor>{x.grad()};
  });
}

TEST_P(DeviceThreads, StopEarlyWithoutALeak) {
  const auto before = live(0);
  RunCounter ends;
  {
    const auto body = [ends](Tensor x) {
      auto y = x.exp().tanh();
      ++ends;
      return y + 1;
    };
    const auto region = refrain::checkpoint(body, refrain::EarlyStop::On);
    region(leaf(0)).sum().backward();
  }
  EXPECT_EQ(ends.runs(), 1) << "the replay went on after the last saved tensor";
  EXPECT_EQ(live(0), before);
}

TEST_P(DeviceThreads, CarryAnExceptionOfTheBodyToTheCaller) {
  const auto region = refrain::checkpoint([](Tensor x) {
    if (refrain::replaying()) throw MyError("no second time");
    return x.exp();
  });
  try {
    region(leaf(0)).sum().backward();
    FAIL() << "nothing was thrown";
  } catch (const MyError& error) {
    EXPECT_STREQ(error.what(), "no second time");
    EXPECT_EQ(error.code, 7);
  }
  const auto x = leaf(0);
  x.exp().sum().backward();
  EXPECT_TRUE(x.grad().defined()) << "the next backward does not work";
}

TEST_P(DeviceThreads, SurviveAnExceptionThatIsNone) {
  const auto region = refrain::checkpoint([](Tensor x) {
    if (refrain::replaying()) throw 42;
    return x.exp();
  });
  support::expect_says<refrain::Error>({"not a std::exception"},
                                       [&] { region(leaf(0)).sum().backward(); });
}

TEST_P(DeviceThreads, ReportADivergence) {
  const auto region = refrain::checkpoint(
      [](Tensor x) { return refrain::replaying() ? x.narrow(0, 0, 2).exp() : x.exp(); });
  support::expect_says<refrain::DivergenceError>(
      {"float32[4, 4] on fake:0", "float32[2, 4] on fake:0"},
      [&] { region(leaf(0)).sum().backward(); });
}

TEST_P(DeviceThreads, DropWhatARetainedGraphRebuilt) {
  const auto x = leaf(0);
  RunCounter ran;
  const auto region = refrain::checkpoint([ran](Tensor t) {
    ++ran;
    return t.exp().tanh();
  });
  const auto y = region(x).sum();
  y.backward({}, /*retain_graph=*/true);
  const auto kept = live(0);
  y.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(ran.runs(), 3);
  EXPECT_EQ(live(0), kept);
}

TEST_P(DeviceThreads, KeepGradModeAndAutocastOfTheForward) {
  std::vector<bool> seen;
  const auto region = refrain::checkpoint([&seen](Tensor x) {
    seen.push_back(at::autocast::is_autocast_enabled(support::kFake));
    seen.push_back(at::GradMode::is_enabled());
    return x.exp();
  });
  const auto x = leaf(0);
  at::autocast::set_autocast_enabled(support::kFake, true);
  const auto y = region(x);
  at::autocast::set_autocast_enabled(support::kFake, false);
  y.sum().backward();
  EXPECT_EQ(seen, (std::vector<bool>{true, true, true, true}));
}

}  // namespace
