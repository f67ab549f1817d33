// SPDX-License-Identifier: BSD-3-Clause
// K2: the replay draws the same numbers and leaves the stream where the plain run does. A04.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/detail/random_state.hpp>
#include <refrain/record.hpp>

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <cstddef>
#include <new>

namespace {

using torch::Tensor;

class RandomStream : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, RandomStream, support::kBothRoutes, support::route_name);

TEST_P(RandomStream, A04_DropoutHasTheSameMaskAndTheStreamGoesOnAsPlain) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto net = step.watch(torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::Dropout(0.5),
                                                torch::nn::ReLU(), torch::nn::Dropout(0.3)));
    const auto x = step.leaf(torch::randn({96, 64}));
    step.backward(wrap([&](Tensor t) { return net->forward(t); })(x));
    step.note("the next numbers", torch::rand({4}));
  });
}

TEST_P(RandomStream, NumbersDrawnBetweenForwardAndBackwardDoNotMatter) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto net = wrap(step.watch(support::Mlp(64, 0.4)));
    const auto y = net(step.leaf(torch::randn({96, 64})));
    step.note("drawn in between", torch::randn({100}));
    step.backward(y);
  });
}

// A generator that stands at the end where it stood at the beginning was drawn from all the same.
TEST_P(RandomStream, ABodyMayEndWithASeedOfItsOwn) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto net = wrap(step.watch(support::Mlp(64, 0.4)));
    const auto body = wrap([](const Tensor& t) {
      const auto dropped = torch::dropout(t, 0.5, true).tanh();
      torch::manual_seed(42);
      return dropped * torch::rand_like(dropped);
    });
    const auto y = body(body(net(step.leaf(torch::randn({96, 64})))));
    step.note("drawn in between", torch::randn({100}));
    step.backward(y);
    step.note("the next numbers", torch::rand({4}));
  });
}

TEST_P(RandomStream, ABodyMayBeginWithASeedOfItsOwn) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto body = wrap([](const Tensor& t) {
      torch::manual_seed(42);
      return torch::dropout(t, 0.5, true).tanh();
    });
    const auto y = body(body(step.leaf(torch::randn({96, 64}))));
    step.note("drawn in between", torch::randn({100}));
    step.backward(y);
    step.note("the next numbers", torch::rand({4}));
  });
}

TEST_P(RandomStream, ABodyMayPutItsGeneratorBack) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto body = wrap([](const Tensor& t) {
      auto generator = at::globalContext().defaultGenerator(at::kCPU);
      const auto before = generator.get_state();
      const auto drawn = t * torch::rand_like(t);
      generator.set_state(before);
      return drawn.sin();
    });
    const auto y = body(step.leaf(torch::randn({8, 64})));
    step.note("drawn in between", torch::randn({100}));
    step.backward(y);
    step.note("the next numbers", torch::rand({4}));
  });
}

TEST_P(RandomStream, ABodyMaySeedAGeneratorThatItNames) {
  auto generator = at::detail::createCPUGenerator(3);
  support::Twin(options().generators({generator})).of([&](auto wrap, support::Step& step) {
    generator.set_current_seed(3);
    const auto body = wrap([&](const Tensor& t) {
      generator.set_current_seed(7);
      const auto drawn = t * at::rand(t.sizes(), generator);
      generator.set_current_seed(3);
      return drawn.sin();
    });
    const auto y = body(step.leaf(torch::randn({8, 64})));
    (void)at::rand({100}, generator);
    step.backward(y);
    step.note("the next numbers", at::rand({4}, generator));
  });
}

TEST_P(RandomStream, KeepsNoStateWhereDropoutIsOff) {
  torch::nn::Dropout off(0.0);
  torch::nn::Dropout eval(0.5);
  eval->eval();
  const auto ledger = refrain::record([&] {
    quiet([&](const Tensor& t) { return eval(off(t.sin())).cos(); })(
        torch::randn({8}).requires_grad_())
        .sum()
        .backward();
  });
  ASSERT_EQ(ledger.calls.size(), 1);
  EXPECT_FALSE(ledger.calls[0].draws);
  EXPECT_EQ(ledger.calls[0].kept_for(refrain::KeptMemory::Why::Random).count(), 0);
}

TEST_P(RandomStream, EachRegionDrawsItsOwnNumbersAgain) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto noise =
        wrap([](Tensor t) { return t * torch::rand_like(t) + torch::randn_like(t).exp() * t; });
    auto x = step.leaf(torch::randn({96, 64}));
    step.backward(noise(noise(noise(x))));
  });
}

TEST_P(RandomStream, ANormalWithItsSpareValueCachedReplaysExactly) {
  // The CPU generator hands out normal numbers in pairs and keeps the second.
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({1}, torch::kDouble));
    step.note("half a pair", torch::randn({1}, torch::kDouble));
    auto noise = wrap([](Tensor t) { return t * torch::randn({1}, torch::kDouble); });
    step.backward(noise(x));
    step.note("the other half", torch::randn({3}, torch::kDouble));
  });
}

TEST_P(RandomStream, BackwardTwiceDrawsTheSameTwice) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto net = wrap(step.watch(support::Mlp(64, 0.5)));
    const auto x = step.leaf(torch::randn({96, 64}));
    step.backward(net(x));
    step.backward(net(x));
  });
}

TEST_P(RandomStream, ARegisteredGeneratorIsPutBackToo) {
  auto own = at::make_generator<at::CPUGeneratorImpl>(99);
  const auto how = options().generators({own});
  const auto start = own.get_state();
  support::Twin(how).of([&](auto wrap, support::Step& step) {
    own.set_state(start);
    auto noise = wrap([own](Tensor t) {
      return t * torch::empty_like(t).uniform_(0, 1, own) + torch::rand_like(t) * t.sin();
    });
    const auto y = noise(step.leaf(torch::randn({5})));
    step.note("drawn in between", torch::empty({3}).uniform_(0, 1, own));
    step.backward(y);
    step.note("drawn after", torch::empty({3}).uniform_(0, 1, own));
  });
}

TEST_P(RandomStream, IgnoringItLeavesTheMasksToChance) {
  const auto x = torch::ones({1000}).requires_grad_();
  const auto draw = [](Tensor t) { return t * torch::rand_like(t); };
  const auto y = refrain::checkpoint(draw, options().rng(refrain::Rng::Ignore))(x);
  y.sum().backward();
  EXPECT_FALSE(torch::equal(y, x.grad())) << "the gradient is the mask; it was drawn afresh";
}

TEST_P(RandomStream, AFailedReplayPutsTheCallersStreamBack) {
  bool fail = false;
  const auto x = torch::randn({4}).requires_grad_();
  auto region = quiet([&fail](Tensor t) {
    const auto y = t * torch::rand_like(t);
    if (fail) throw std::runtime_error("on purpose");
    return y.exp();
  });
  const auto y = region(x);
  fail = true;
  const auto before = at::globalContext().defaultGenerator(at::kCPU).get_state();
  EXPECT_ANY_THROW(y.sum().backward());
  EXPECT_TRUE(torch::equal(before, at::globalContext().defaultGenerator(at::kCPU).get_state()));
}

TEST_P(RandomStream, StoppingEarlyStillLeavesTheStreamAsPlain) {
  // The dropout comes after the last saved tensor of the linear layer, so the replay never draws
  // it.
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({20'000}));
    const auto y = wrap([](Tensor t) { return t.exp() + torch::rand_like(t); })(x);
    step.backward(y);
  });
}

/// An engine of seed 7 that was made in memory full of `filling`: LibTorch's has padding.
const at::mt19937& engine_made_in(std::byte filling) {
  alignas(at::mt19937) static std::array<std::byte, sizeof(at::mt19937)> memory;
  memory.fill(filling);
  return *new (memory.data()) at::mt19937(7);
}

TEST(RandomState, TwoGeneratorsAtOnePlaceAreEqualWhereverTheyWereMade) {
  auto one = at::detail::createCPUGenerator(1);
  auto other = at::detail::createCPUGenerator(2);
  EXPECT_FALSE(refrain::detail::RandomState(one).equals(refrain::detail::RandomState(other)));
  at::check_generator<at::CPUGeneratorImpl>(one)->set_engine(engine_made_in(std::byte{0}));
  at::check_generator<at::CPUGeneratorImpl>(other)->set_engine(engine_made_in(std::byte{255}));
  EXPECT_TRUE(refrain::detail::RandomState(one).equals(refrain::detail::RandomState(other)));
}

}  // namespace
