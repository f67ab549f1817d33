// SPDX-License-Identifier: BSD-3-Clause
// K3: a replay that takes another path is an error that says what differs. A05 and its siblings.
#include "support/messages.hpp"
#include "support/seeded.hpp"
#include <refrain/checkpoint.hpp>

namespace {

using refrain::Check;
using refrain::DivergenceError;
using support::expect_says;
using torch::Tensor;

using OtherPath = support::Seeded;

/// Keys of all calls so far, kept where no registry sees them.
struct CachedAttentionImpl : torch::nn::Module {
  CachedAttentionImpl() : key(register_module("key", torch::nn::Linear(6, 6))) {}

  Tensor forward(Tensor x) {
    const auto k = key(x);
    cache = cache.defined() ? torch::cat({cache, k}, 1) : k;
    const auto scores = cache.matmul(x.transpose(1, 2)).transpose(1, 2);
    return torch::softmax(scores, -1).matmul(cache);
  }

  torch::nn::Linear key;
  Tensor cache;
};
TORCH_MODULE(CachedAttention);

TEST_F(OtherPath, A05_AGrownCacheIsNamedByItsShapesThenAndNow) {
  auto attention = refrain::checkpoint(CachedAttention());
  const auto y = attention(torch::randn({2, 4, 6}).requires_grad_());
  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{2, 4, 6}));
  expect_says<DivergenceError>({"refrain: ", "[2, 4, ", "[2, 8, ", "slot", "likely cause"},
                               [&] { y.sum().backward(); });
  attention->inner()->cache = Tensor();  // a result of the region, whose graph holds the region
}

TEST_F(OtherPath, ALayerThatSkipsItselfOnReplayIsAnError) {
  int calls = 0;
  const auto how = refrain::CheckpointOptions().name("layers.3");
  const auto body = [&calls](Tensor t) {
    t = t.sin();
    return ++calls == 1 ? t.exp().cos() : t.clone();
  };
  const auto y = refrain::checkpoint(body, how)(torch::randn({3}).requires_grad_());
  expect_says<DivergenceError>({"layers.3", "saved 1", "saved 3"}, [&] { y.sum().backward(); });
}

TEST_F(OtherPath, ALongerReplayIsAnErrorWhenItRunsToTheEnd) {
  int calls = 0;
  const auto how = refrain::CheckpointOptions().early_stop(refrain::EarlyStop::Off);
  const auto body = [&calls](Tensor t) { return ++calls == 1 ? t.sin() : t.sin().exp(); };
  const auto y = refrain::checkpoint(body, how)(torch::randn({3}).requires_grad_());
  expect_says<DivergenceError>({"saved 2", "saved 1"}, [&] { y.sum().backward(); });
}

TEST_F(OtherPath, AnotherDtypeIsNamed) {
  int calls = 0;
  const auto body = [&calls](Tensor t) {
    return (++calls == 1 ? t : t.to(torch::kDouble)).sin().to(torch::kFloat);
  };
  const auto y = refrain::checkpoint(body)(torch::randn({3}).requires_grad_());
  expect_says<DivergenceError>({"float32[3]", "float64[3]"}, [&] { y.sum().backward(); });
}

TEST_F(OtherPath, ARouterThatSplitsOtherwiseIsAnError) {
  bool flip = false;
  const auto body = [&flip](Tensor t) {
    const auto keep = flip ? t > 0 : t <= 0;
    return torch::zeros_like(t).index_put({keep}, t.index({keep}).exp());
  };
  const auto y = refrain::checkpoint(body)(torch::tensor({-1.0, 2.0, 3.0}).requires_grad_());
  flip = true;
  expect_says<DivergenceError>({"[1]", "[2]"}, [&] { y.sum().backward(); });
}

TEST_F(OtherPath, TheNextStepWorksAfterADivergence) {
  int calls = 0;
  auto region =
      refrain::checkpoint([&calls](Tensor t) { return ++calls == 2 ? t : t.sin().exp(); });
  const auto x = torch::randn({3}).requires_grad_();
  EXPECT_THROW(region(x).sum().backward(), DivergenceError);
  EXPECT_NO_THROW(region(x).sum().backward());
  EXPECT_TRUE(torch::allclose(x.grad(), x.sin().exp() * x.cos()));
}

TEST_F(OtherPath, WithChecksOffNothingIsCompared) {
  int calls = 0;
  const auto body = [&calls](Tensor t) { return ++calls == 1 ? t.sin() : t.sin().exp(); };
  auto region = refrain::checkpoint(body, Check::None);
  EXPECT_NO_THROW(region(torch::randn({3}).requires_grad_()).sum().backward());
}

}  // namespace
