// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

namespace ops {

inline Tensors lstm(Call& c) {
  const auto x = fit(c.a(), {3, 1, 2});
  const auto w = fit(c.b(), {8, 2}) * 0.5;
  const Tensors weights{w, w.clone(), fit(c.c(), {8}), fit(c.c(), {8}) * 0.1};
  const auto zero = at::zeros({1, 1, 2}, x.options());
  auto [out, h, cell] = at::lstm(x, {zero, zero}, weights, true, 1, 0.0, true, false, false);
  return {out, h, cell};
}

inline Tensors gru(Call& c) {
  const auto x = fit(c.a(), {2, 2, 2});
  const Tensors weights{fit(c.b(), {6, 2}), fit(c.b(), {6, 2}) * 0.5, fit(c.c(), {6}),
                        fit(c.c(), {6})};
  auto [out, h] =
      at::gru(x, fit(c.c(), {1, 2, 2}), weights, true, 1, 0.0, true, false, c.dice.flip());
  return {out, h};
}

inline at::Tensor grid_sample(Call& c) {
  return at::grid_sampler(fit(c.a(), {1, 2, 3, 3}), fit(c.b(), {1, 2, 2, 2}).tanh(), 0,
                          c.dice.pick(2), c.dice.flip());
}

}  // namespace ops

/// Convolution, normalization, pooling, recurrence and losses.
inline Ops nn_ops() {
  return {
      op("conv1d", 3,
         [](Call& c) {
           return at::conv1d(fit(c.a(), {2, 2, 5}), fit(c.b(), {3, 2, 3}) * 0.5, fit(c.c(), {3}), 1,
                             c.dice.pick(2));
         }),
      op("conv2d", 3,
         [](Call& c) {
           return at::conv2d(fit(c.a(), {1, 2, 4, 4}), fit(c.b(), {2, 2, 2, 2}) * 0.5,
                             fit(c.c(), {2}), 1 + c.dice.pick(2));
         }),
      op("conv_transpose1d", 2,
         [](Call& c) {
           return at::conv_transpose1d(fit(c.a(), {1, 2, 3}), fit(c.b(), {2, 2, 2}) * 0.5, {}, 2);
         }),
      op("conv_frozen", 1,
         [](Call& c) {
           const auto w = at::linspace(-1, 1, 12, c.a().options()).view({2, 2, 3});
           return at::conv1d(fit(c.a(), {2, 2, 5}), w);
         }),
      op("layer_norm", 3,
         [](Call& c) {
           return at::layer_norm(fit(c.a(), {2, 3, 4}), {4}, fit(c.b(), {4}), fit(c.c(), {4}));
         }),
      op("layer_norm_bare", 1, [](Call& c) { return at::layer_norm(fit(c.a(), {3, 4}), {4}); }),
      op("rms_norm", 2,
         [](Call& c) { return at::rms_norm(fit(c.a(), {3, 4}), {4}, fit(c.b(), {4})); }),
      op("group_norm", 2,
         [](Call& c) {
           return at::group_norm(fit(c.a(), {2, 4, 3}), 2, fit(c.b(), {4}), fit(c.b(), {4}).sin());
         }),
      op("instance_norm", 1,
         [](Call& c) {
           return at::instance_norm(fit(c.a(), {2, 3, 4}), {}, {}, {}, {}, true, 0.1, 1e-3, true);
         }),
      op("local_response_norm", 1,
         [](Call& c) {
           return torch::nn::functional::local_response_norm(
               fit(c.a(), {1, 3, 4}), torch::nn::functional::LocalResponseNormFuncOptions(2));
         }),
      op("max_pool1d", 1, [](Call& c) { return at::max_pool1d(fit(c.a(), {1, 2, 6}), 2); }),
      op("max_pool2d", 1,
         [](Call& c) { return at::max_pool2d(fit(c.a(), {1, 2, 4, 4}), 2, 1 + c.dice.pick(2)); }),
      op("avg_pool2d", 1, [](Call& c) { return at::avg_pool2d(fit(c.a(), {1, 2, 4, 4}), 2); }),
      op("adaptive_avg_pool", 1,
         [](Call& c) { return at::adaptive_avg_pool1d(fit(c.a(), {1, 2, 6}), 3); }),
      op("adaptive_max_pool", 1,
         [](Call& c) {
           return std::get<0>(at::adaptive_max_pool2d(fit(c.a(), {2, 4, 4}), {2, 3}));
         }),
      op("upsample", 1,
         [](Call& c) { return at::upsample_linear1d(fit(c.a(), {1, 2, 4}), {6}, c.dice.flip()); }),
      op("patches", 1,
         [](Call& c) {
           return at::im2col(fit(c.a(), {1, 2, 3, 3}), {2, 2}, {1, 1}, {0, 0}, {1, 1});
         }),
      op("grid_sample", 2, &ops::grid_sample),
      list_op("lstm", 3, 3, &ops::lstm),
      list_op("gru", 3, 2, &ops::gru),
      op("lstm_cell", 3,
         [](Call& c) {
           const Tensors hx{fit(c.a(), {1, 2}), fit(c.b(), {1, 2})};
           auto [h, cell] = at::lstm_cell(fit(c.a(), {1, 3}), hx, fit(c.b(), {8, 3}),
                                          fit(c.c(), {8, 2}), fit(c.c(), {8}), {});
           return h + cell;
         }),
      op("weight_norm", 2,
         [](Call& c) { return at::_weight_norm(fit(c.a(), {3, 4}) + 0.1, fit(c.b(), {3, 1})); }),
      op("mse_loss", 2, [](Call& c) { return at::mse_loss(fit(c.a(), {6}), fit(c.b(), {6})); }),
      op("smooth_l1", 2,
         [](Call& c) { return at::smooth_l1_loss(fit(c.a(), {6}), fit(c.b(), {6}).detach()); }),
      op("cross_entropy", 2,
         [](Call& c) {
           return at::cross_entropy_loss(fit(c.a(), {3, 4}), indices(c, c.b(), {3}, 4));
         }),
      op("nll_loss", 2,
         [](Call& c) {
           return at::nll_loss(fit(c.a(), {3, 4}).log_softmax(1), indices(c, c.b(), {3}, 4));
         }),
      op("kl_div", 2,
         [](Call& c) {
           return at::kl_div(fit(c.a(), {2, 4}).log_softmax(1), fit(c.b(), {2, 4}).softmax(1));
         }),
      op("bce", 2,
         [](Call& c) {
           return at::binary_cross_entropy_with_logits(fit(c.a(), {6}),
                                                       fit(c.b(), {6}).detach().sigmoid());
         }),
      op("margin_loss", 2,
         [](Call& c) {
           return at::multi_margin_loss(fit(c.a(), {3, 4}), indices(c, c.b(), {3}, 4));
         }),
      op("label_margin_loss", 2,
         [](Call& c) {
           return at::multilabel_margin_loss(fit(c.a(), {3, 4}), indices(c, c.b(), {3, 4}, 4));
         }),
      op("ctc_loss", 1,
         [](Call& c) {
           const auto lengths = at::full({1}, 4, at::kLong);
           return at::ctc_loss(fit(c.a(), {4, 1, 3}).log_softmax(2),
                               at::ones({1, 2}, at::kLong) + at::arange(2), lengths,
                               at::full({1}, 2, at::kLong)) *
                  0.1;
         }),
  };
}

}  // namespace refrain_fuzz
