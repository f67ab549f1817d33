// SPDX-License-Identifier: BSD-3-Clause
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/checkpoint.hpp>

#include <torch/torch.h>

#include <string>
#include <tuple>

namespace {

using torch::Tensor;
namespace nn = torch::nn;

class DefaultArguments : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, DefaultArguments, support::kBothRoutes, support::route_name);

struct AttendImpl : nn::Module {
  explicit AttendImpl(std::int64_t width = 4)
      : fc(register_module("fc", nn::Linear(width, width))) {}
  Tensor forward(Tensor x, Tensor mask = {}, double scale = 2.0, const std::string& act = "tanh") {
    auto y = fc(x) * scale;
    if (mask.defined()) y = y.masked_fill(mask, 0.0);
    return act == "tanh" ? y.tanh() : y.sin();
  }
  nn::Linear fc;
};
TORCH_MODULE(Attend);

TEST_P(DefaultArguments, ApplyWhateverIsLeftOut) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto block = wrap(step.watch(Attend(4)));
    const auto x = step.leaf(torch::randn({3, 4}));
    const auto mask = torch::rand({3, 4}) > 0.5;
    step.backward(block(x), block(x, mask), block(x, mask, 0.5), block(x, Tensor(), 0.5, "sin"));
  });
}

TEST_P(DefaultArguments, MayBeReplayedAfterTheCallersValuesAreGone) {
  auto block = quiet(Attend(4));
  Tensor y;
  {
    const std::string act = "sin";
    y = block(torch::randn({3, 4}), torch::Tensor(), 1.0, act);
  }
  EXPECT_NO_THROW(y.sum().backward());
}

TEST_P(DefaultArguments, ConvertAsInAPlainCall) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto block = wrap(step.watch(Attend(4)));
    step.backward(block(step.leaf(torch::randn({3, 4})), Tensor(), 3));
  });
}

TEST_P(DefaultArguments, OfLibTorchsOwnModulesApply) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layer = wrap(step.watch(
        nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16))));
    step.backward(layer(step.leaf(torch::randn({3, 2, 8}))));
  });
}

TEST_P(DefaultArguments, OfLibTorchsOwnModulesApplyInASequentialToo) {
  auto layer = nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dropout(0));
  nn::Sequential plain(layer);
  nn::Sequential wrapped(quiet(layer));
  const auto x = torch::randn({3, 2, 8});
  EXPECT_TRUE(torch::equal(wrapped->forward(x), plain->forward(x)));
}

TEST_P(DefaultArguments, OfACallableApply) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor x, double scale = 3.0) { return (x * scale).sin(); });
    const auto x = step.leaf(torch::randn({4}));
    step.backward(region(x), region(x, 0.5));
  });
}

}  // namespace
