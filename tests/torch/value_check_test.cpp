// SPDX-License-Identifier: BSD-3-Clause
// Check::Values: replays that give other bits are named, and nothing else is.
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/stacks.hpp"
#include "support/twin.hpp"
#include <refrain/detail/fingerprint.hpp>
#include <refrain/keep.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <random>
#include <vector>

namespace {

namespace nn = torch::nn;
using refrain::Check;
using refrain::CheckpointOptions;
using refrain::DivergenceError;
using refrain::detail::Fingerprint;
using support::expect_says;
using torch::Tensor;

TEST(Fingerprints, OfEqualBitsAreEqualAndSayWhichBlockDiffers) {
  const auto a = torch::randn({5000});
  EXPECT_FALSE(Fingerprint(a).first_difference(a.clone()));
  for (const std::int64_t place : {0, 1023, 1024, 4096, 4999}) {
    auto b = a.clone();
    b[place] = torch::nextafter(b[place], torch::tensor(1e9F));
    EXPECT_EQ(Fingerprint(a).first_difference(b), place / 1024);
  }
  auto swapped = a.clone();
  swapped[1] = a[2];
  swapped[2] = a[1];
  EXPECT_EQ(Fingerprint(a).first_difference(swapped), 0);
  const auto nan = torch::full({3}, NAN);
  EXPECT_FALSE(Fingerprint(nan).first_difference(nan.clone()));
  EXPECT_TRUE(Fingerprint(torch::zeros({1})).first_difference(-torch::zeros({1})));
  EXPECT_FALSE(Fingerprint(torch::empty({0})).first_difference(torch::empty({0})));
}

TEST(Fingerprints, GoByElementsHoweverTheyLie) {
  const auto a = torch::randn({6, 40, 16});
  const std::vector<Tensor> all = {a,
                                   a.transpose(0, 1),
                                   a.transpose(1, 2),
                                   a.slice(1, 3, 30),
                                   a.slice(2, 1, 9).permute({2, 0, 1}),
                                   a[0].t(),
                                   a.select(2, 0),
                                   a.unsqueeze(2).expand({6, 40, 5, 16}),
                                   a.slice(0, 0, 1),
                                   a.to(torch::kHalf).slice(2, 0, 7),
                                   torch::complex(a, a).conj(),
                                   a[0].gt(0).t().slice(0, 0, 3)};
  for (const auto& tensor : all) {
    const auto same = tensor.clone(at::MemoryFormat::Contiguous);
    EXPECT_FALSE(Fingerprint(tensor).first_difference(same)) << tensor.strides();
    EXPECT_FALSE(Fingerprint(same).first_difference(tensor)) << tensor.strides();
    auto other = same.clone();
    other.view({-1})[other.numel() / 2] = other.view({-1})[other.numel() / 2].logical_not();
    EXPECT_TRUE(Fingerprint(tensor).first_difference(other)) << tensor.strides();
  }
}

class ValueChecks : public support::OnBothRoutes {
 protected:
  [[nodiscard]] CheckpointOptions checked(Check check = Check::Values) const {
    return options().check(check).name("block");
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, ValueChecks, support::kBothRoutes, support::route_name);

class SlotValues : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(1); }

  using Body = std::function<Tensor(Tensor)>;

  /// Expects that the replay of `body` is refused, once `between` ran, with these words.
  static void refused(
      std::initializer_list<const char*> said, const Body& body,
      const std::function<void()>& between = [] {}, Check check = Check::Values) {
    auto region = refrain::checkpoint(body, CheckpointOptions(check).name("block"));
    const auto y = region(torch::randn({3, 4}).requires_grad_());
    between();
    expect_says<DivergenceError>(said, [&] { y.sum().backward(); });
  }
};

TEST_P(ValueChecks, HonestRegionsPass) {
  for (const Check check : {Check::Values, Check::Copies}) {
    // The function route may add a tensor's gradients up in another order.
    const double tolerance = GetParam() == refrain::Route::Function ? 1e-5 : 0;
    support::Twin(options().check(check)).tolerance(tolerance).of([](auto wrap, auto& step) {
      auto norm = step.watch(nn::BatchNorm1d(8));
      auto mlp = step.watch(support::Mlp(8));
      auto region = wrap([=](const Tensor& x) mutable {
        auto y = torch::dropout(mlp(norm(x)), 0.3, true);
        y = torch::relu_(y) +
            x.cumsum(0).transpose(0, 1).matmul(x).index({torch::arange(3)}).mean();
        return torch::softmax(y, 1).clone();
      });
      const auto x = step.leaf(torch::randn({5, 8}));
      step.backward(region(region(x).exp()), region(x));
    });
  }
}

TEST_P(ValueChecks, SoDoNestedOnesAndThoseThatKeep) {
  support::Twin(options().check(Check::Values).keep(refrain::policy::keep_matmuls()))
      .of([](auto wrap, support::Step& step) {
        auto mlp = step.watch(support::Mlp(8));
        auto inner = wrap([=](const Tensor& x) mutable { return mlp(x).sin(); });
        auto outer = wrap([=](const Tensor& x) mutable {
          const auto scale = refrain::keep("scale", [&] { return x.detach().abs().max(); });
          return inner(inner(x * scale).exp());
        });
        step.backward(outer(step.leaf(torch::randn({5, 8}))));
      });
}

TEST_P(ValueChecks, ARandomEngineOfTheUsersOwn) {
  std::mt19937 engine(3);
  auto region = refrain::checkpoint(
      [&](const Tensor& x) {
        const auto factor = std::uniform_real_distribution<float>(0, 1)(engine);
        return (x * torch::full({4}, factor)).sin().exp();
      },
      checked());
  const auto y = region(torch::randn({3, 4}).requires_grad_());
  expect_says<DivergenceError>({"`block`", "other values than the first run", "float32"},
                               [&] { y.sum().backward(); });
}

TEST_P(ValueChecks, AGeneratorThatNobodyNamedIsRefusedAtOnce) {
  auto own = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto body = [=](const Tensor& x) mutable {
    return (x * torch::empty_like(x).normal_(0, 1, own)).sin();
  };
  const auto x = torch::randn({3, 4}).requires_grad_();
  expect_says<refrain::Error>(
      {"`block` draws from a generator that no replay puts back (aten::normal_)", "generators({"},
      [&] { (void)refrain::checkpoint(body, checked())(x); });
  refrain::checkpoint(body, checked().generators({own}))(x).sum().backward();
}

TEST_F(SlotValues, AnElementIsNamedByCopies) {
  std::mt19937 engine(3);
  refused(
      {"`block`", "slot 0", "float32[3, 4]", "made by aten::mul, saved by aten::sin",
       "in the 4096 bytes from 0", "element [0, 0]: ", " then, ", "first run: ", ">aten::sin<"},
      [&](const Tensor& x) {
        const auto factor = static_cast<double>(1 + engine() % 1000);
        return (x * factor).sin().exp();
      },
      [] {}, Check::Copies);
}

TEST_F(SlotValues, AChangeBehindAutogradsBack) {
  const auto weight = torch::ones({4});
  refused(
      {"from outside the region, saved by aten::mul"},
      [=](const Tensor& x) { return (x * weight).sin(); }, [=] { weight.data().mul_(2); });
}

TEST_F(SlotValues, AWrongPlaceInTheRandomStream) {
  refused({"other values", "aten::"}, [](const Tensor& x) {
    if (refrain::replaying()) (void)torch::rand({1});
    return torch::dropout(x, 0.5, true).sin();
  });
}

TEST_F(SlotValues, ACacheOfEqualShape) {
  Tensor cache;
  refused({"other values"}, [&](const Tensor& x) {
    const auto before = cache.defined() ? cache : torch::zeros_like(x);
    cache = x.detach().clone();
    return (x * before).sin().exp();
  });
}

TEST_F(SlotValues, AKernelThatAddsInAnotherOrder) {
  // What atomic additions on a device do: here the order is drawn.
  std::mt19937 order(1);
  refused({"other values"}, [&](const Tensor& x) {
    auto sum = torch::zeros({4});
    std::vector<int> rows(300);
    for (int i = 0; i < 300; ++i) rows[static_cast<std::size_t>(i)] = i;
    std::shuffle(rows.begin(), rows.end(), order);
    const auto values = torch::linspace(0.1, 7, 300 * 4).view({300, 4}).exp();
    for (const int row : rows) sum += values[row];
    return (x * sum).sin().exp();
  });
}

TEST_F(SlotValues, AutocastSwitchedOffIsNamedByItsType) {
  // The replay puts autocast back; a body that switches it by itself is seen by the types.
  nn::Linear linear(4, 4);
  refused({"bfloat16", "float32"}, [=](const Tensor& x) mutable {
    at::autocast::set_autocast_enabled(at::kCPU, !refrain::replaying());
    auto y = linear(x).to(torch::kFloat).exp();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return y;
  });
}

TEST_F(SlotValues, AreNotComparedWithoutBeingAsked) {
  std::mt19937 engine(3);
  auto region = refrain::checkpoint(
      [&](const Tensor& x) { return (x * static_cast<double>(engine() % 1000)).sin().exp(); });
  EXPECT_NO_THROW(region(torch::randn({3, 4}).requires_grad_()).sum().backward());
}

TEST_P(ValueChecks, OneCallInThree) {
  std::mt19937 engine(3);
  auto region = refrain::checkpoint(
      [&](const Tensor& x) { return (x * static_cast<double>(engine() % 1000)).sin().exp(); },
      options().check(Check::Values, 3));
  std::vector<bool> noticed;
  for (int call = 0; call < 7; ++call) {
    const auto y = region(torch::randn({3, 4}).requires_grad_());
    try {
      y.sum().backward();
      noticed.push_back(false);
    } catch (const DivergenceError&) {
      noticed.push_back(true);
    }
  }
  EXPECT_EQ(noticed, (std::vector<bool>{true, false, false, true, false, false, true}));
  EXPECT_THROW((void)options().check(Check::Values, 0), refrain::OptionError);
  EXPECT_EQ(to_string(CheckpointOptions().check(Check::Values, 3)),
            "hooks, values checked in one call of 3");
}

TEST_P(ValueChecks, ANextStepAfterADivergenceWorks) {
  bool lies = true;
  int runs = 0;
  auto region = refrain::checkpoint(
      [&](const Tensor& x) {
        ++runs;
        return (x * (lies ? runs : 1)).sin().exp();
      },
      checked());
  const auto x = torch::randn({3, 4}).requires_grad_();
  const auto y = region(x);
  EXPECT_THROW(y.sum().backward(), DivergenceError);
  lies = false;
  x.mutable_grad() = Tensor();
  region(x).sum().backward();
  const auto plain = x.detach().sin().exp() * x.detach().cos();
  EXPECT_TRUE(torch::allclose(x.grad(), plain));
}

TEST_P(ValueChecks, BuffersThatMoveAreNotTakenForDivergence) {
  auto norm = nn::BatchNorm1d(4);
  auto region =
      refrain::checkpoint([=](const Tensor& x) mutable { return norm(x).sin(); }, checked());
  const auto x = torch::randn({3, 4}).requires_grad_();
  const auto a = region(x);
  const auto b = region(x);
  EXPECT_NO_THROW((a + b).sum().backward());
}

}  // namespace
