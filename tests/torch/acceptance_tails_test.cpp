// SPDX-License-Identifier: BSD-3-Clause
// K6, K10: a replay may stop after the last tensor that autograd needs, and what it rebuilt must be
// filled by then. Each tail ends a region with another kind of operator.
#include "support/custom_functions.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

#include <functional>
#include <string>
#include <vector>

namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

// Large enough for a stop to pay: tiny regions run to their end.
constexpr std::int64_t kRows = 64;
constexpr std::int64_t kColumns = 128;

struct Tail {
  std::string name;
  std::function<Tensor(Tensor)> run;
};

/// From [64, 128] to anything. Some save what they have not filled yet, some save frozen tensors,
/// some save masks, indices or statistics, some nothing.
std::vector<Tail> tails() {
  const auto frozen = torch::randn({kColumns, kColumns}) * 0.1;
  const auto weight = (torch::randn({kColumns, kColumns}) * 0.1).requires_grad_();
  const auto norm = torch::ones({kColumns}).requires_grad_();
  const auto mask = torch::rand({kRows, kColumns}) > 0.5;
  const auto columns = torch::randint(0, kColumns, {kRows}, torch::kLong);
  const auto kernel = torch::randn({9, kRows, 3}).requires_grad_();
  const auto attention = [](Tensor t) {
    t = t.view({1, 4, kRows / 4, kColumns});
    return torch::scaled_dot_product_attention(t, t.cos(), t.sin());
  };
  return {
      {"rrelu in training", [](Tensor t) { return torch::rrelu(t, 0.1, 0.3, true); }},
      {"rrelu in place", [](Tensor t) { return torch::rrelu_(t, 0.1, 0.3, true); }},
      {"dropout", [](Tensor t) { return torch::dropout(t, 0.5, true); }},
      {"alpha dropout", [](Tensor t) { return torch::alpha_dropout(t, 0.3, true); }},
      {"feature dropout", [](Tensor t) { return torch::feature_dropout(t, 0.3, true); }},
      {"a frozen product", [=](Tensor t) { return t.matmul(frozen); }},
      {"a product", [=](Tensor t) { return t.matmul(weight); }},
      {"a product, then a sum", [=](Tensor t) { return t.matmul(weight) + 1; }},
      {"masked fill", [=](Tensor t) { return t.masked_fill(mask, 0.5); }},
      {"where", [=](Tensor t) { return torch::where(mask, t, t * 2); }},
      {"index", [=](Tensor t) { return t.index({torch::indexing::Slice(), columns}); }},
      {"gather", [=](Tensor t) { return t.gather(1, columns.expand({kRows, kRows})); }},
      {"topk", [](Tensor t) { return std::get<0>(t.topk(99)); }},
      {"sort", [](Tensor t) { return std::get<0>(t.sort()); }},
      {"max", [](Tensor t) { return std::get<0>(t.max(1)); }},
      {"max pool", [](Tensor t) { return torch::max_pool1d(t, 2); }},
      {"adaptive max pool",
       [](Tensor t) { return std::get<0>(torch::adaptive_max_pool1d(t, 99)); }},
      {"layer norm", [=](Tensor t) { return torch::layer_norm(t, {kColumns}, norm); }},
      {"a batch norm's own statistics",
       [=](Tensor t) { return torch::batch_norm(t, norm, {}, {}, {}, true, 0.1, 1e-5, false); }},
      {"softmax", [](Tensor t) { return t.softmax(-1); }},
      {"log sigmoid", [](Tensor t) { return torch::log_sigmoid(t); }},
      {"prelu", [](Tensor t) { return torch::prelu(t, torch::full({1}, 0.2)); }},
      {"cumprod", [](Tensor t) { return t.cumprod(1); }},
      {"logcumsumexp", [](Tensor t) { return t.logcumsumexp(1); }},
      {"prod", [](Tensor t) { return t.prod(1); }},
      {"std", [](Tensor t) { return t.std(1); }},
      {"norm", [](Tensor t) { return t.norm(2, 1); }},
      {"convolution", [=](Tensor t) { return torch::conv1d(t, kernel); }},
      {"attention", attention},
      {"attention with dropout",
       [](Tensor t) { return torch::scaled_dot_product_attention(t, t, t, {}, 0.5); }},
      {"relu in place", [](Tensor t) { return (t + 1).relu_(); }},
      {"exp in place on a view", [](Tensor t) { return (t + 1).slice(1, 1, 4).exp_(); }},
      {"a write into a view",
       [](Tensor t) {
         auto y = t + 1;
         y.select(0, 1).mul_(t.select(0, 0));
         return y;
       }},
      {"svd", [](Tensor t) { return std::get<1>(torch::linalg_svd(t, false)); }},
      {"inverse",
       [](Tensor t) { return torch::inverse(t.t().matmul(t) + torch::eye(kColumns) * 99); }},
      {"interpolate", [](Tensor t) { return torch::upsample_linear1d(t.unsqueeze(0), 99, true); }},
      {"a loss with targets", [=](Tensor t) { return torch::nll_loss(t.log_softmax(1), columns); }},
      {"ctc loss",
       [](Tensor t) {
         return torch::ctc_loss(
             t.unsqueeze(1).log_softmax(2), torch::tensor({{1, 2}}, torch::kLong),
             torch::tensor({kRows}, torch::kLong), torch::tensor({2}, torch::kLong));
       }},
      {"grid sample",
       [](Tensor t) {
         return F::grid_sample(t.view({1, 1, kRows, kColumns}),
                               t.tanh().view({1, kRows, kColumns / 2, 2}));
       }},
      {"einsum", [=](Tensor t) { return torch::einsum("ij,jk->ik", {t, weight}); }},
      {"cat", [](Tensor t) { return torch::cat({t, t.exp(), t}, 1); }},
      {"index put", [=](Tensor t) { return t.clone().index_put_({mask}, t.sum()); }},
      {"scatter", [=](Tensor t) { return t.scatter(1, columns.expand({kRows, kRows}), 0.5); }},
      {"complex", [](Tensor t) { return torch::view_as_real(torch::fft_fft(t).exp()); }},
      {"foreach",
       [](Tensor t) {
         const auto all = torch::_foreach_exp({t, t.sin()});
         return all[0] + all[1];
       }},
      {"a Function", [](Tensor t) { return support::SavesInputThenOutputs::apply(t)[0]; }},
      {"nothing saved", [](Tensor t) { return t.t().contiguous(); }},
  };
}

class Tails : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Tails, support::kBothRoutes, support::route_name);

void expect_twins(const refrain::CheckpointOptions& options) {
  for (const auto& tail : tails()) {
    SCOPED_TRACE(tail.name);
    support::Twin(options).of([&tail](auto wrap, support::Step& step) {
      const auto x = step.leaf(torch::randn({kRows, kColumns}));
      auto region = wrap([&](Tensor t) { return tail.run(t.sin()); });
      step.backward(region(x));
    });
  }
}

TEST_P(Tails, AreExactWithEarlyStop) { expect_twins(options()); }

TEST_P(Tails, AreExactWithoutEarlyStop) {
  expect_twins(options().early_stop(refrain::EarlyStop::Off));
}

TEST_P(Tails, AreExactInsideAnotherRegion) {
  for (const auto& tail : tails()) {
    SCOPED_TRACE(tail.name);
    support::Twin(options()).of([&tail](auto wrap, support::Step& step) {
      const auto x = step.leaf(torch::randn({kRows, kColumns}));
      auto inner = wrap([&](Tensor t) { return tail.run(t.sin()); });
      auto outer = wrap([&](Tensor t) { return inner(t.cos()); });
      step.backward(outer(x));
    });
  }
}

}  // namespace
