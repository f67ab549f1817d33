// SPDX-License-Identifier: BSD-3-Clause
// K12: several threads, one module. Backward on another thread than forward.
#include "support/live_bytes.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace {

using torch::Tensor;

class Threads : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Threads, support::kBothRoutes, support::route_name);

/// Runs `work(index)` on `count` threads at once; what they throw fails the test.
template <class Work>
void on_threads(int count, const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&work, i] {
      try {
        work(i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << i << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(Threads, TwoThreadsRunRegionsOfOneModuleAtTheSameTime) {
  auto block = support::Mlp(8);
  auto layer = quiet(block);
  std::vector<Tensor> xs, plain(4), got(4);
  for (int i = 0; i < 4; ++i) xs.push_back(torch::randn({3, 8}));
  for (int i = 0; i < 4; ++i) {
    const auto x = xs[i].clone().requires_grad_();
    block(x).pow(2).sum().backward();
    plain[i] = x.grad();
  }
  on_threads(4, [&](int i) {
    for (int step = 0; step < 50; ++step) {
      auto mine = layer;  // holders are handles: each thread has its own
      const auto x = xs[i].clone().requires_grad_();
      mine(x).pow(2).sum().backward();
      got[i] = x.grad();
    }
  });
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(torch::equal(got[i], plain[i])) << "thread " << i;
}

TEST_P(Threads, TwoThreadsOverOneBatchNormCountEachBatchOnce) {
  auto norm = torch::nn::BatchNorm1d(6);
  norm->eval();
  auto layer = quiet(norm);
  on_threads(2, [&](int) {
    for (int step = 0; step < 50; ++step) {
      auto mine = layer;
      mine(torch::randn({4, 6}).requires_grad_()).pow(2).sum().backward();
    }
  });
  EXPECT_TRUE(torch::equal(norm->running_mean, torch::zeros({6})));
}

TEST_P(Threads, BackwardOnAnotherThreadThanForward) {
  auto block = support::Mlp(8, 0.3);
  auto layer = quiet(block);
  const auto x = torch::randn({3, 8}).requires_grad_();
  torch::manual_seed(3);
  const auto y = layer(x);
  on_threads(1, [&](int) { y.pow(2).sum().backward(); });
  const auto got = x.grad().clone();
  x.mutable_grad().reset();
  torch::manual_seed(3);
  block(x).pow(2).sum().backward();
  EXPECT_TRUE(torch::equal(got, x.grad()));
}

TEST_P(Threads, AForwardOnAThreadThatIsGone) {
  Tensor y;
  const auto x = torch::randn({3}).requires_grad_();
  on_threads(1, [&](int) { y = quiet([](Tensor t) { return t.sin().exp(); })(x); });
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), x.sin().exp() * x.cos()));
}

TEST_P(Threads, TwoThreadsGoBackwardThroughOneRetainedRegion) {
  const auto x = torch::randn({50}).requires_grad_();
  const auto y = quiet([](Tensor t) { return t.sin().exp().cos(); })(x).sum();
  on_threads(2, [&](int) {
    for (int pass = 0; pass < 20; ++pass) y.backward({}, /*retain_graph=*/true);
  });
  const auto once = -(x.sin().exp()).sin() * x.sin().exp() * x.cos();
  EXPECT_TRUE(torch::allclose(x.grad(), once * 40, 1e-4, 1e-4));
}

TEST_P(Threads, ARegionOnOneThreadDoesNotQuietAnother) {
  // While this thread is inside a region, plain autograd elsewhere must keep what it saves.
  const auto x = torch::randn({3}).requires_grad_();
  Tensor elsewhere;
  auto region = quiet([&](Tensor t) {
    if (!elsewhere.defined()) {
      on_threads(1, [&](int) {
        const auto z = torch::ones({3}).requires_grad_();
        z.exp().sum().backward();
        elsewhere = z.grad();
      });
    }
    return t.sin().exp();
  });
  region(x).sum().backward();
  EXPECT_TRUE(torch::allclose(elsewhere, torch::ones({3}).exp()));
}

TEST_P(Threads, ThreadsThatFailDoNotDisturbThreadsThatDoNot) {
  auto block = support::Mlp(8);
  std::atomic<int> failures = 0;
  on_threads(4, [&](int i) {
    int calls = 0;
    auto region = quiet([&](Tensor t) {
      if (i % 2 == 0 && ++calls % 2 == 0) throw std::runtime_error("on purpose");
      return block->forward(t).sin();
    });
    for (int step = 0; step < 30; ++step) {
      try {
        region(torch::randn({3, 8}).requires_grad_()).sum().backward();
      } catch (const std::exception&) {
        ++failures;
      }
    }
  });
  EXPECT_EQ(failures, 2 * 30);
}

TEST_P(Threads, ReplaysThatNeedBuffersAndTheRandomStreamDoNotWaitForEachOther) {
  // One draws and then writes, the other writes and then draws; either may be inside another.
  auto norm = torch::nn::BatchNorm1d(6);
  auto write = quiet([=](Tensor t) mutable { return norm(t).sin(); });
  auto draw = quiet([](Tensor t) { return torch::dropout(t, 0.3, true).exp(); });
  auto draw_around_write =
      quiet([=](Tensor t) mutable { return write(torch::dropout(t, 0.3, true)); });
  auto write_around_draw = quiet([=](Tensor t) mutable { return draw(norm(t)).cos(); });
  on_threads(2, [&](int i) {
    auto first = draw_around_write;
    auto second = write_around_draw;
    for (int step = 0; step < 200; ++step) {
      const auto x = torch::randn({4, 6}).requires_grad_();
      const auto y = i == 0 ? second(first(x)) : first(second(x));
      y.sum().backward();
      EXPECT_TRUE(x.grad().defined());
    }
  });
}

}  // namespace
