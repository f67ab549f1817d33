// SPDX-License-Identifier: BSD-3-Clause
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/checkpoint.hpp>

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using support::Mlp;
using torch::Tensor;
namespace nn = torch::nn;
namespace policy = refrain::policy;

/// The plain counterpart of a wrapped vector.
struct InTurn {
  template <class Layer, class... Extras>
  static Tensor run(std::vector<Layer> layers, Tensor x, const Extras&... extras) {
    for (auto& layer : layers) x = layer(x, extras...);
    return x;
  }
};

class LayersVector : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, LayersVector, support::kBothRoutes, support::route_name);

struct MaskedImpl : nn::Module {
  Tensor forward(Tensor x, Tensor mask, double scale) {
    ++runs;
    return x + (fc(x) * scale).masked_fill(mask, 0.0).tanh();
  }
  nn::Linear fc = register_module("fc", nn::Linear(6, 6));
  int runs = 0;
};
TORCH_MODULE(Masked);

TEST_P(LayersVector, GivesTheExtraArgumentsToEveryLayer) {
  std::vector<Masked> layers(4);
  const auto mask = torch::rand({3, 6}) > 0.5;
  const auto x = torch::randn({3, 6});
  auto stack = refrain::checkpoint(layers, policy::every(2), options());
  EXPECT_TRUE(torch::equal(stack(x, mask, 0.5), InTurn::run(layers, x, mask, 0.5)));
}

TEST_P(LayersVector, GivesGradientsToTheExtraArguments) {
  const auto x = torch::randn({3, 6});
  const auto weight = torch::randn({6}).requires_grad_();
  std::vector<std::function<Tensor(Tensor, Tensor)>> layers(
      5, [](Tensor h, Tensor w) { return (h * w).sin() + h; });
  InTurn::run(layers, x, weight).sum().backward();
  const auto expected = weight.grad().clone();
  weight.mutable_grad() = Tensor();
  refrain::checkpoint(layers, policy::segments(2), options())(x, weight).sum().backward();
  EXPECT_TRUE(torch::allclose(weight.grad(), expected));
}

TEST_P(LayersVector, MayHoldFunctionsThatChangeThemselves) {
  const auto x = torch::randn({3}).requires_grad_();
  const auto gradient = [&](auto policy) {
    const auto counting = [n = 0](Tensor t) mutable { return (t * double(++n)).sin(); };
    auto stack = refrain::checkpoint(std::vector(6, counting), std::move(policy), options());
    (stack(x) + stack(x)).sum().backward();
    return std::exchange(x.mutable_grad(), Tensor());
  };
  const auto plain = gradient(policy::none());
  EXPECT_TRUE(torch::equal(gradient(policy::every(2)), plain));
  EXPECT_TRUE(torch::equal(gradient(policy::binary()), plain));
}

TEST_P(LayersVector, ReplaysAllButTheLastSegment) {
  std::vector<Masked> layers(6);
  auto stack = refrain::checkpoint(layers, policy::every(2), options());
  stack(torch::randn({3, 6}), torch::zeros({3, 6}, torch::kBool), 1.0).sum().backward();
  std::vector<int> runs;
  for (const auto& layer : layers) runs.push_back(layer->runs);
  EXPECT_EQ(runs, (std::vector<int>{2, 2, 2, 2, 1, 1}));
}

TEST_P(LayersVector, TakesPlainFunctions) {
  struct Body {
    static Tensor sine(Tensor x) { return x.sin(); }
    static Tensor square(Tensor x) { return x * x; }
  };
  std::vector<Tensor (*)(Tensor)> layers{&Body::sine, &Body::square, &Body::sine};
  const auto x = torch::randn({4}).requires_grad_();
  refrain::checkpoint(layers, policy::all(), options())(x).sum().backward();
  const auto s = x.detach().sin();
  EXPECT_TRUE(torch::allclose(x.grad(), (s * s).cos() * 2 * s * x.detach().cos()));
}

TEST_P(LayersVector, OfNothingGivesTheInputBack) {
  const auto x = torch::randn({4}).requires_grad_();
  auto stack = refrain::checkpoint(std::vector<Mlp>(), policy::all(), options());
  EXPECT_TRUE(torch::equal(stack(x), x));
}

TEST_P(LayersVector, OfOneLayerMayBeReplayedOnRequest) {
  std::vector<Masked> layers(1);
  const auto last = policy::LastSegment::Replay;
  auto stack = refrain::checkpoint(layers, policy::all(last), options());
  stack(torch::randn({3, 6}), torch::zeros({3, 6}, torch::kBool), 1.0).sum().backward();
  EXPECT_EQ(layers[0]->runs, 2);
}

TEST_P(LayersVector, IsACopyableCallable) {
  std::function<Tensor(Tensor)> stack;
  {
    std::vector<Mlp> layers{Mlp(6), Mlp(6)};
    const auto original = refrain::checkpoint(layers, policy::all(), options());
    stack = original;
  }
  EXPECT_NO_THROW(stack(torch::randn({2, 6})).sum().backward());
}

TEST_P(LayersVector, KeepsItsLayersAliveUntilTheReplay) {
  Tensor y;
  {
    std::vector<Mlp> layers{Mlp(6), Mlp(6)};
    y = refrain::checkpoint(layers, policy::all(), options())(torch::randn({2, 6}));
  }
  EXPECT_NO_THROW(y.sum().backward());
}

TEST_P(LayersVector, MayHoldSequentials) {
  std::vector<torch::nn::Sequential> layers;
  for (int i = 0; i < 3; ++i) layers.emplace_back(torch::nn::Linear(6, 6), torch::nn::Tanh());
  const auto x = torch::randn({2, 6}, torch::requires_grad());
  const auto stack = refrain::checkpoint(layers, policy::all(), options());
  auto expected = x;
  for (auto& layer : layers) expected = layer->forward(expected);
  EXPECT_TRUE(torch::equal(stack(x), expected));
  EXPECT_NO_THROW(stack(x).sum().backward());
  EXPECT_TRUE(layers[0]->parameters()[0].grad().defined());
}

struct Layer : nn::Module {
  virtual Tensor forward(Tensor x) = 0;
};
struct Wave : Layer {
  Tensor forward(Tensor x) override { return fc(x).sin() + x; }
  nn::Linear fc = register_module("fc", nn::Linear(6, 6));
};
struct Fall : Layer {
  Tensor forward(Tensor x) override { return torch::exp(-x * x); }
};

struct OfAnObjectImpl : nn::Module {
  Tensor forward(Tensor x) & { return fc(x).sin(); }
  nn::Linear fc = register_module("fc", nn::Linear(6, 6));
};
TORCH_MODULE(OfAnObject);

TEST_P(LayersVector, AForwardMayAskForAnObjectThatStays) {
  const auto module = std::make_shared<OfAnObjectImpl>();
  const auto x = torch::randn({3, 6});
  EXPECT_TRUE(torch::equal(refrain::checkpoint(module, options())->forward(x), module->forward(x)));
}

TEST_P(LayersVector, MayBeOfSharedModulesOfAnAbstractBase) {
  const auto wave = std::make_shared<Wave>();
  const std::vector<std::shared_ptr<Layer>> layers{wave, std::make_shared<Fall>(), wave};
  const auto x = torch::randn({3, 6});
  auto plain = x;
  for (const auto& layer : layers) plain = layer->forward(plain);
  const auto quiet = refrain::checkpoint(layers, policy::every(1), options())(x);
  EXPECT_TRUE(torch::equal(quiet, plain));
  plain.sum().backward();
  const auto expected = wave->fc->weight.grad().clone();
  wave->zero_grad();
  quiet.sum().backward();
  EXPECT_TRUE(torch::allclose(wave->fc->weight.grad(), expected));
}

}  // namespace
