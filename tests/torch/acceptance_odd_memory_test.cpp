// SPDX-License-Identifier: BSD-3-Clause
// Memory that is shared, borrowed, written in part, sparse, or kept by the body: each as in a plain
// run, or refused.
#include "../support/live_bytes.hpp"
#include "../support/seeded.hpp"
#include "../support/twin.hpp"
#include <refrain/refrain.hpp>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class OddMemory : public support::Seeded {
 protected:
  torch::Tensor x = torch::randn({16, 8}, torch::requires_grad());
};

struct KeepsItsResultImpl : torch::nn::Module {
  KeepsItsResultImpl() { register_module("linear", linear); }
  torch::Tensor forward(torch::Tensor input) {
    last = linear(input).sin();
    return last.cos().exp();
  }
  torch::nn::Linear linear{8, 8};
  torch::Tensor last;
};
TORCH_MODULE(KeepsItsResult);

struct GivesAReferenceImpl : torch::nn::Module {
  const torch::Tensor& forward(const torch::Tensor& input) {
    result = input.sin();
    return result;
  }
  torch::Tensor result;
};
TORCH_MODULE(GivesAReference);

TEST_F(OddMemory, AKeptResultOfAReplayHoldsNoActivationsAndSaysSoWhenUsed) {
  auto block = refrain::checkpoint(KeepsItsResult());
  block(x).sum().backward();
  EXPECT_THAT(
      [&] { block->inner()->last.sum().backward(); },
      ThrowsMessage<refrain::Error>(HasSubstr("a tensor that a replay made, after that replay")));
}

TEST_F(OddMemory, AForwardThatGivesAReferenceServesInsideASequential) {
  torch::nn::Sequential net(refrain::checkpoint(GivesAReference()), torch::nn::Linear(8, 2));
  net->forward(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST_F(OddMemory, SparseTensorsPassThroughARegion) {
  support::Twin().of([](auto wrap, support::Step& step) {
    const auto input = step.leaf(torch::randn({16, 8}));
    const auto graph = torch::eye(16).to_sparse();
    step.backward(
        wrap([graph](torch::Tensor t) { return torch::mm(graph, t).sin().exp(); })(input));
  });
}

TEST_F(OddMemory, MemoryBorrowedWithinTheBodyIsNotTouchedAfterwards) {
  support::Twin().of([](auto wrap, support::Step& step) {
    const auto input = step.leaf(torch::randn({16, 8}));
    step.backward(wrap([](torch::Tensor t) {
      std::vector<float> numbers(8, 1.0F);
      auto borrowed = torch::from_blob(numbers.data(), {8});
      borrowed.add_(1);
      return (t * borrowed.clone()).sin();
    })(input));
  });
}

TEST_F(OddMemory, BorrowedMemoryThatAFunctionCapturesMovesOnce) {
  std::vector<float> numbers(8, 0.0F);
  auto borrowed = torch::from_blob(numbers.data(), {8});
  auto quiet = refrain::checkpoint([borrowed](torch::Tensor t) {
    borrowed.add_(1);
    return (t + borrowed).sin();
  });
  quiet(x).sum().backward();
  EXPECT_EQ(numbers[0], 1.0F);
  EXPECT_TRUE(torch::equal(x.grad(), (x + 1).cos().detach()));
}

TEST_F(OddMemory, ATableOfWhichAPartIsWrittenIsReadAsItWasAtTheCall) {
  auto table = torch::zeros({4, 8});
  auto quiet = refrain::checkpoint([table](torch::Tensor t) {
    table[0].add_(1);
    return (t + table[0] + table[1]).sin();
  });
  quiet(x).sum().backward();
  EXPECT_EQ(table.sum().item<float>(), 8.0F);
  EXPECT_TRUE(torch::equal(x.grad(), (x + 1).cos().detach()));

  auto y = quiet(x).sum();
  table[1].add_(1);
  x.mutable_grad() = torch::Tensor();
  y.backward();
  EXPECT_TRUE(torch::equal(x.grad(), (x + 2).cos().detach()));
  EXPECT_EQ(table.sum().item<float>(), 24.0F);
}

TEST_F(OddMemory, TwoForwardsBeforeBackwardMoveABufferWrittenThroughAView) {
  support::Twin().of([](auto wrap, support::Step& step) {
    const auto running = torch::ones({8});
    auto body = wrap([running](torch::Tensor t) {
      running.detach().mul_(2);
      return (t * running.clone()).sin();
    });
    const auto input = step.leaf(torch::randn({16, 8}));
    const auto first = body(input);
    const auto second = body(input);
    step.backward(first, second);
    step.note("running", running);
  });
}

TEST_F(OddMemory, AWriteThroughDataMovesOnce) {
  auto buffer = torch::zeros({8});
  auto quiet = refrain::checkpoint([buffer](torch::Tensor t) {
    for (int i = 0; i < 3; ++i) t = t.sin();  // leaves addresses to be used again
    buffer.data().add_(1);
    return t.exp();
  });
  auto y = quiet(x) + quiet(x);
  y.sum().backward();
  EXPECT_EQ(buffer[0].item<float>(), 2.0F);
}

TEST_F(OddMemory, ViewsAmongTheArgumentsAreKeptAsWhatTheyView) {
  auto quiet =
      refrain::checkpoint([](torch::Tensor t, at::OptionalArrayRef<double> scales,
                             std::span<const double> shifts, std::optional<at::IntArrayRef> dims) {
        return (t * (*scales)[0] + shifts[1]).sum(*dims).sin();
      });
  torch::Tensor y;
  {
    std::vector<double> numbers{1.5, 2.0};
    std::vector<std::int64_t> dims{1};
    y = quiet(x, at::OptionalArrayRef<double>(numbers), std::span<const double>(numbers),
              std::optional<at::IntArrayRef>(dims));
    numbers.assign({99.0, 99.0});
    dims[0] = 0;
  }
  y.sum().backward();
  const auto plain = x.detach().clone().requires_grad_();
  (plain * 1.5 + 2.0).sum(1).sin().sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), plain.grad()));
}

TEST_F(OddMemory, AResultThatEscapedAThrowingBodyStillHasItsGradient) {
  torch::Tensor escaped;
  auto quiet = refrain::checkpoint([&](torch::Tensor t) -> torch::Tensor {
    escaped = (t * t).sin();
    throw std::runtime_error("the body gave up");
  });
  EXPECT_THROW(quiet(x), std::runtime_error);
  const auto kept = escaped;
  kept.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), ((x * x).cos() * 2 * x).detach()));
}

TEST_F(OddMemory, AnArgumentChangedWhileACapturedTensorSharesItsMemoryIsRefused) {
  auto shared = torch::zeros({8});
  auto quiet = refrain::checkpoint([shared](torch::Tensor t, torch::Tensor offset) {
    {
      const torch::NoGradGuard no_grad;
      shared.add_(1);
    }
    return (t + offset).sin();
  });
  EXPECT_THAT([&] { quiet(x, shared.view({8})); },
              ThrowsMessage<refrain::Error>(HasSubstr("whose memory a captured tensor shares")));
}

TEST_F(OddMemory, ATensorWrittenManyTimesIsCopiedOnce) {
  auto counter = torch::zeros({1024});
  auto quiet = refrain::checkpoint([counter](torch::Tensor t) {
    for (int i = 0; i < 50; ++i) counter.add_(1);
    return t.sin();
  });
  const auto before = support::live_bytes();
  auto y = quiet(x);
  EXPECT_LT(support::live_bytes() - before, 3 * 4096);
  y.sum().backward();
  EXPECT_EQ(counter[0].item<float>(), 50.0F);
}

TEST_F(OddMemory, OneCastServesTwoRegionsOnTheFunctionRoute) {
  torch::nn::Linear linear(8, 8);
  auto quiet =
      refrain::checkpoint([&](torch::Tensor t) { return linear(t); }, refrain::Route::Function);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
  auto y = quiet(x) + quiet(x);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  y.sum().backward();
  EXPECT_TRUE(linear->weight.grad().defined());
}

TEST_F(OddMemory, AVeryLongChainIsDroppedWithoutDeepRecursion) {
  const auto a = torch::randn({8, 8}, torch::requires_grad());
  auto step = refrain::checkpoint([a](torch::Tensor t) { return (a * a).mm(t.sin()); });
  auto y = torch::randn({8, 8});
  for (int i = 0; i < 20000; ++i) y = step(y);
  y.reset();
  SUCCEED();
}

TEST_F(OddMemory, ACapturedTensorThatChangesItsShapeIsRefused) {
  auto b = torch::randn({8, 8});
  auto flipping = refrain::checkpoint([b](torch::Tensor t) mutable {
    {
      const torch::NoGradGuard no_grad;
      b.t_();
    }
    return t.matmul(b).tanh();
  });
  EXPECT_THAT([&] { flipping(x); }, ThrowsMessage<refrain::Error>(
                                        HasSubstr("changes the shape or memory of a captured")));
}

TEST_F(OddMemory, ACapturedSparseTensorThatChangesIsRefused) {
  auto s = torch::eye(16).to_sparse();
  auto doubling = refrain::checkpoint([s](torch::Tensor t) mutable {
    {
      const torch::NoGradGuard no_grad;
      s.mul_(2);
    }
    return torch::mm(s, t).exp();
  });
  EXPECT_THAT([&] { doubling(x); },
              ThrowsMessage<refrain::Error>(HasSubstr("a captured tensor that is not dense")));
}

TEST_F(OddMemory, ABufferMayBeReadThroughAnExpandedView) {
  support::Twin().of([](auto wrap, support::Step& step) {
    auto b = torch::ones({1, 8});
    const auto wide = b.expand({16, 8});
    auto region = wrap([b, wide](torch::Tensor t) mutable {
      auto y = t + wide;
      {
        const torch::NoGradGuard no_grad;
        b.add_(1);
      }
      return y.exp();
    });
    const auto t = step.leaf(torch::randn({16, 8}));
    step.backward(region(t), region(t));
    step.note("buffer", b);
  });
}

TEST_F(OddMemory, NestedTensorsAreServed) {
  support::Twin().of([](auto wrap, support::Step& step) {
    const auto t = step.leaf(torch::randn({6, 3}));
    auto region = wrap([](torch::Tensor u) {
      const auto parts = at::_nested_tensor_from_tensor_list({u.slice(0, 0, 2), u.slice(0, 2, 6)});
      return torch::gelu(parts * 2).to_padded_tensor(0);
    });
    step.backward(region(t));
  });
}

TEST_F(OddMemory, AnElementOfAVectorOfBoolIsKeptAsItsValue) {
  std::vector<bool> flags{true};
  const auto region = refrain::checkpoint(
      [](torch::Tensor t, bool sine) { return sine ? t.sin().exp() : t.cos().exp(); });
  const auto y = region(x, flags[0]);
  flags[0] = false;
  const auto gradient = torch::autograd::grad({y.sum()}, {x})[0];
  EXPECT_TRUE(torch::equal(gradient, torch::autograd::grad({x.sin().exp().sum()}, {x})[0]));
}

}  // namespace
