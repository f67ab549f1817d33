// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake_accelerator.hpp"
#include "support/twin.hpp"
#include <refrain/memory.hpp>
#include <refrain/options.hpp>
#include <refrain/replay.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace support {

/// Two fake devices to run on. A plain backward has made their threads before the first region.
class OnAccelerator : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    install_fake_accelerator();
    torch::ones({2}, fake_device(0)).requires_grad_().exp().sum().backward();
  }
  void SetUp() override { seed_all(); }

  static void seed_all() {
    for (c10::DeviceIndex i = 0; i < kFakeDevices; ++i) seed(20, fake_device(i));
  }
  static torch::Tensor leaf(c10::DeviceIndex device, std::vector<std::int64_t> shape = {4, 4}) {
    return torch::randn(shape).to(fake_device(device)).requires_grad_();
  }
  static std::int64_t live(c10::DeviceIndex device) {
    return refrain::memory(fake_device(device)).live.count();
  }
  static std::uint64_t draws(c10::DeviceIndex device) {
    return fake::generator(device).get_offset();
  }

  /// Runs `step`, which gives a list of tensors, plain and as it is, from the same random state.
  template <class Step>
  static void expect_same(const Step& step) {
    const auto run = [&] {
      seed_all();
      return std::pair(step(), draws(0) + 1000 * draws(1));
    };
    const auto plain = [&] {
      const refrain::PlainScope scope;
      return run();
    }();
    const auto quiet = run();
    ASSERT_EQ(plain.first.size(), quiet.first.size());
    for (std::size_t i = 0; i < plain.first.size(); ++i) {
      EXPECT_TRUE(torch::equal(plain.first[i].cpu(), quiet.first[i].cpu()))
          << "tensor " << i << " differs";
    }
    EXPECT_EQ(plain.second, quiet.second) << "the random streams end elsewhere";
  }
};

/// The same, once for each way to run work: instantiate with `kEachMode`.
class OnAcceleratorInEachMode : public OnAccelerator, public testing::WithParamInterface<Async> {
 protected:
  void SetUp() override {
    OnAccelerator::SetUp();
    scope_.emplace(GetParam());
    fake::delay_streams(200, /*seed=*/20);
  }
  void TearDown() override { scope_.reset(); }

 private:
  std::optional<AsyncScope> scope_;
};

inline const auto kEachMode = testing::Values(Async::AtOnce, Async::Threads, Async::Lazy);
inline std::string mode_name(const testing::TestParamInfo<Async>& info) {
  switch (info.param) {
    case Async::AtOnce:
      return "AtOnce";
    case Async::Threads:
      return "Threads";
    case Async::Lazy:
      return "Lazy";
  }
  return "";
}

}  // namespace support
