// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/on_accelerator.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/error.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <vector>

namespace {

using torch::Tensor;

/// As if a graph were captured while it lives.
class Capturing {
 public:
  Capturing() { generator().capturing = true; }
  ~Capturing() { generator().capturing = false; }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;

 private:
  static support::fake::Generator& generator() {
    return *support::fake::generator(0).get<support::fake::Generator>();
  }
};

class GraphCapture : public support::OnAccelerator,
                     public testing::WithParamInterface<refrain::Route> {
 protected:
  /// Draws on the device; its `dropout` would on the host.
  static Tensor body(const Tensor& x) {
    return (x.exp() * torch::empty_like(x).bernoulli_(0.5)).tanh();
  }
  static auto region() {
    return refrain::checkpoint(body,
                               refrain::CheckpointOptions().name("decoder").route(GetParam()));
  }
  /// What is refused leaves everything as it was.
  static void expect_works() {
    expect_same([] {
      const auto x = leaf(0);
      region()(x).sum().backward();
      return std::vector<Tensor>{x.grad()};
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Fake, GraphCapture,
                         testing::Values(refrain::Route::Hooks, refrain::Route::Function));

TEST_P(GraphCapture, RefusesACall) {
  const auto x = leaf(0);
  {
    const Capturing now;
    support::expect_says<refrain::Error>(
        {"cannot run `decoder` while a CUDA graph is captured", "Rng::Ignore"},
        [&] { static_cast<void>(region()(x)); });
  }
  expect_works();
}

TEST_P(GraphCapture, RefusesAReplayThatDraws) {
  const auto y = region()(leaf(0)).sum();
  {
    const Capturing now;
    support::expect_says<refrain::Error>({"cannot replay `decoder` while a CUDA graph is captured"},
                                         [&] { y.backward(); });
  }
  expect_works();
}

TEST_P(GraphCapture, LetsARegionPassThatIgnoresRandomNumbers) {
  const Capturing now;
  const auto x = leaf(0);
  const auto quiet =
      refrain::checkpoint([](const Tensor& t) { return t.exp().tanh(); },
                          refrain::CheckpointOptions(refrain::Rng::Ignore).route(GetParam()));
  quiet(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
