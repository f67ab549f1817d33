// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

/// Ops that draw from the default generator, and one that draws from the program's own.
inline Ops random_ops() {
  const auto random = [](std::string name, int arguments, auto run) {
    return op(std::move(name), arguments, run, Kind::Random);
  };
  return {
      random("dropout", 1,
             [](Call& c) { return at::dropout(c.a(), 0.1 * (1 + c.dice.pick(6)), true); }),
      random("feature_dropout", 1,
             [](Call& c) { return at::feature_dropout(fit(c.a(), {2, 3, 2}), 0.3, true); }),
      random("alpha_dropout", 1, [](Call& c) { return at::alpha_dropout(c.a(), 0.2, true); }),
      random("bernoulli", 1,
             [](Call& c) { return c.a() * at::bernoulli(c.a().detach().sigmoid().nan_to_num()); }),
      random("noise", 1, [](Call& c) { return c.a() + at::rand_like(c.a()); }),
      random("normal_noise", 1, [](Call& c) { return c.a() * at::randn_like(c.a()); }),
      random("shuffle", 1,
             [](Call& c) {
               const auto x = fit(c.a(), {4, 3});
               return x.index_select(0, at::randperm(4, at::kLong));
             }),
      random("multinomial", 1,
             [](Call& c) {
               const auto x = fit(c.a(), {2, 4});
               return x.gather(1,
                               at::multinomial(x.detach().nan_to_num().clamp(-9, 9).softmax(1), 2));
             }),
      random("rrelu", 1, [](Call& c) { return at::rrelu(c.a(), 0.1, 0.4, true); }),
      random("gumbel", 1,
             [](Call& c) {
               return torch::nn::functional::gumbel_softmax(
                   fit(c.a(), {3, 4}),
                   torch::nn::functional::GumbelSoftmaxFuncOptions().hard(c.dice.flip()));
             }),
      random("attention_dropout", 3,
             [](Call& c) {
               return at::scaled_dot_product_attention(fit(c.a(), {1, 2, 3, 4}),
                                                       fit(c.b(), {1, 2, 3, 4}),
                                                       fit(c.c(), {1, 2, 3, 4}), {}, 0.3);
             }),
      random("fill_normal", 1,
             [](Call& c) { return at::empty_like(c.a()).normal_(0, c.dice.real()) * c.a(); }),
      random("dropout_in_place", 1,
             [](Call& c) {
               auto x = c.a() * 1.5;
               return at::dropout_(x, 0.3, true);
             }),
      random("own_generator", 1,
             [](Call& c) {
               return c.a() * at::rand(c.a().sizes(), c.state.generator, c.a().options());
             }),
      random("draw", 0, [](Call& c) { return at::rand({2, 3}, c.state.parameters[0].options()); }),
  };
}

}  // namespace refrain_fuzz
