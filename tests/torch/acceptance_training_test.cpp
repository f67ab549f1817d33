// SPDX-License-Identifier: BSD-3-Clause
// K4, K8, K11: whole training loops end at the same weights, bit for bit.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

namespace {

using support::Step;
using support::Twin;
using torch::Tensor;
namespace nn = torch::nn;

class Training : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Training, support::kBothRoutes, support::route_name);

template <class Module>
void note_weights(Step& step, const Module& module) {
  for (const auto& item : module->named_parameters()) step.note(item.key(), item.value());
}

TEST_P(Training, TwentyStepsOfAdamEndAtTheSameWeights) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto first = step.watch(support::Mlp(8, 0.2));
    auto norm = step.watch(nn::BatchNorm1d(8));
    auto a = wrap(first);
    auto b = wrap(norm);
    auto parameters = first->parameters();
    for (const auto& p : norm->parameters()) parameters.push_back(p);
    torch::optim::Adam adam(parameters, 1e-2);
    for (int i = 0; i < 20; ++i) {
      adam.zero_grad();
      b(a(torch::randn({6, 8}))).pow(2).sum().backward();
      adam.step();
    }
    note_weights(step, first);
    note_weights(step, norm);
  });
}

TEST_P(Training, AnAdversarialPairSharesItsDiscriminator) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto make = step.watch(nn::Linear(4, 8));
    auto judge = step.watch(nn::BatchNorm1d(8));
    auto generator = wrap(make);
    auto critic = wrap(judge);
    torch::optim::SGD sgd_g(make->parameters(), 1e-2);
    torch::optim::SGD sgd_d(judge->parameters(), 1e-2);
    for (int i = 0; i < 5; ++i) {
      sgd_d.zero_grad();
      const auto fake = generator(torch::randn({5, 4}));
      const auto loss =
          critic(torch::randn({5, 8})).sin().sum() - critic(fake.detach()).cos().sum();
      loss.backward();
      sgd_d.step();
      sgd_g.zero_grad();
      critic(generator(torch::randn({5, 4}))).tanh().sum().backward();
      sgd_g.step();
    }
    note_weights(step, make);
    note_weights(step, judge);
  });
}

/// A power iteration in a buffer, as spectral normalisation does it.
struct SpectralImpl : nn::Module {
  SpectralImpl()
      : weight(register_parameter("weight", torch::randn({5, 5}))),
        u(register_buffer("u", torch::randn({5}))) {}

  Tensor forward(Tensor x) {
    Tensor v;
    {
      const torch::NoGradGuard no_grad;
      v = torch::nn::functional::normalize(weight.t().mv(u),
                                           nn::functional::NormalizeFuncOptions().dim(0));
      u.copy_(torch::nn::functional::normalize(weight.mv(v),
                                               nn::functional::NormalizeFuncOptions().dim(0)));
    }
    const auto sigma = u.clone().dot(weight.mv(v));
    return x.matmul(weight / sigma).tanh();
  }
  Tensor weight, u;
};
TORCH_MODULE(Spectral);

/// Codes that move towards what they are the nearest of.
struct CodebookImpl : nn::Module {
  CodebookImpl()
      : codes(register_buffer("codes", torch::randn({7, 5}))),
        used(register_buffer("used", torch::zeros({7}))) {}

  Tensor forward(Tensor x) {
    const auto nearest = torch::cdist(x.detach(), codes).argmin(1);
    const auto found = codes.index_select(0, nearest);
    {
      const torch::NoGradGuard no_grad;
      used.index_add_(0, nearest, torch::ones({x.size(0)}));
      codes.index_add_(0, nearest, (x - found) * 0.1);
    }
    return (x * found).sin() + used.index_select(0, nearest).unsqueeze(1) * x;
  }
  Tensor codes, used;
};
TORCH_MODULE(Codebook);

/// Keeps its weight in bounds while it runs.
struct ClampedImpl : nn::Module {
  ClampedImpl() : weight(register_parameter("weight", torch::randn({5, 5}) * 3)) {}
  Tensor forward(Tensor x) {
    {
      const torch::NoGradGuard no_grad;
      weight.clamp_(-1, 1).mul_(0.9);
    }
    return x.matmul(weight).tanh();
  }
  Tensor weight;
};
TORCH_MODULE(Clamped);

template <class Holder>
auto steps_of() {
  return [](auto wrap, Step& step) {
    auto module = step.watch(Holder());
    auto layer = wrap(module);
    for (int i = 0; i < 3; ++i) step.backward(layer(step.leaf(torch::randn({4, 5}))));
    step.backward(layer(layer(step.leaf(torch::randn({4, 5})))));
    note_weights(step, module);
  };
}

TEST_P(Training, APowerIterationInABufferMovesOnce) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto layer = wrap(step.watch(Spectral()));
    for (int i = 0; i < 3; ++i) step.backward(layer(step.leaf(torch::randn({4, 5}))));
  });
}

TEST_P(Training, ACodebookMovesOnce) { Twin(options()).of(steps_of<Codebook>()); }

TEST(TrainingHooks, AWeightClampedInForwardMovesOnce) {
  Twin().of([](auto wrap, Step& step) {
    auto module = step.watch(Clamped());
    auto layer = wrap(module);
    for (int i = 0; i < 3; ++i) step.backward(layer(step.leaf(torch::randn({4, 5}))));
    note_weights(step, module);
  });
}

TEST_P(Training, NormsInNestedRegionsMoveOnce) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto norm = step.watch(nn::BatchNorm1d(nn::BatchNorm1dOptions(5).momentum(std::nullopt)));
    auto inner = wrap(norm);
    auto outer = wrap([&](Tensor t) { return inner(t.sin()).cos(); });
    for (int i = 0; i < 3; ++i) step.backward(outer(step.leaf(torch::randn({4, 5}))));
    const auto loss = step.loss({outer(step.leaf(torch::randn({4, 5})))});
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST_P(Training, RegionsGoneBackwardInTheOrderOfTheForward) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto layer = wrap(step.watch(support::Mlp(5, 0.4)));
    auto norm = wrap(step.watch(nn::BatchNorm1d(5)));
    std::vector<Tensor> losses;
    for (int i = 0; i < 4; ++i) {
      losses.push_back(step.loss({norm(layer(step.leaf(torch::randn({4, 5}))))}));
    }
    for (const auto& loss : losses) loss.backward();
  });
}

}  // namespace
