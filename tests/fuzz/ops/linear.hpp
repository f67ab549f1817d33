// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

/// Products of matrices and what is built from them.
inline Ops linear_ops() {
  return {
      op("mm", 2,
         [](Call& c) {
           const auto x = matrix(c, c.a());
           return x.mm(fit(c.b(), {x.size(1), 4})) * 0.5;
         }),
      op("matmul", 2,
         [](Call& c) {
           const auto x = at_least(small(c.a()), 2);
           return x.matmul(fit(c.b(), {x.size(-1), 3})) * 0.5;
         }),
      op("bmm", 2, [](Call& c) { return fit(c.a(), {2, 3, 4}).bmm(fit(c.b(), {2, 4, 2})) * 0.5; }),
      op("linear", 3,
         [](Call& c) {
           const auto x = at_least(small(c.a()), 1);
           return at::linear(x, fit(c.b(), {4, x.size(-1)}) * 0.5, fit(c.c(), {4}));
         }),
      op("addmm", 3,
         [](Call& c) {
           return at::addmm(fit(c.a(), {4}), fit(c.b(), {3, 2}), fit(c.c(), {2, 4}), 1,
                            c.dice.real());
         }),
      op("baddbmm", 3,
         [](Call& c) {
           return at::baddbmm(fit(c.a(), {2, 3, 3}), fit(c.b(), {2, 3, 2}), fit(c.c(), {2, 2, 3}),
                              0.5);
         }),
      op("mv", 2, [](Call& c) { return fit(c.a(), {3, 4}).mv(fit(c.b(), {4})); }),
      op("dot", 2, [](Call& c) { return at::dot(fit(c.a(), {6}), fit(c.b(), {6})) * 0.2; }),
      op("outer", 2, [](Call& c) { return at::outer(fit(c.a(), {4}), fit(c.b(), {3})).tanh(); }),
      op("einsum", 2,
         [](Call& c) {
           return at::einsum("bij,bkj->bik", {fit(c.a(), {2, 3, 4}), fit(c.b(), {2, 2, 4})}) * 0.5;
         }),
      op("bilinear", 3,
         [](Call& c) {
           return at::bilinear(fit(c.a(), {3, 2}), fit(c.b(), {3, 4}), fit(c.c(), {3, 2, 4})) * 0.2;
         }),
      op("inverse", 1,
         [](Call& c) {
           const auto x = fit(c.a(), {3, 3}).tanh();
           return at::linalg_inv(at::eye(3, x.options()) * 4 + x);
         }),
      op("determinant", 1,
         [](Call& c) {
           const auto x = fit(c.a(), {3, 3}).tanh();
           return at::linalg_det(at::eye(3, x.options()) + 0.2 * x);
         }),
      op("cholesky", 1,
         [](Call& c) {
           const auto x = fit(c.a(), {3, 3}).tanh();
           return at::linalg_cholesky(x.mm(x.t()) + at::eye(3, x.options()));
         }),
      op("distances", 2,
         [](Call& c) { return at::cdist(fit(c.a(), {3, 4}), fit(c.b(), {2, 4}) + 5) * 0.2; }),
      op("cosine_similarity", 2,
         [](Call& c) {
           return at::cosine_similarity(fit(c.a(), {3, 4}), fit(c.b(), {3, 4}), c.dice.pick(2));
         }),
      op("chain_of_products", 3,
         [](Call& c) {
           return at::linalg_multi_dot(
                      {fit(c.a(), {3, 2}), fit(c.b(), {2, 4}), fit(c.c(), {4, 2})}) *
                  0.2;
         }),
      op("attention", 3,
         [](Call& c) {
           return at::scaled_dot_product_attention(
               fit(c.a(), {1, 2, 3, 4}), fit(c.b(), {1, 2, 3, 4}), fit(c.c(), {1, 2, 3, 4}), {},
               0.0, c.dice.flip());
         }),
      op("attention_by_hand", 3,
         [](Call& c) {
           const auto q = fit(c.a(), {2, 3, 4});
           const auto scores = q.matmul(fit(c.b(), {2, 3, 4}).transpose(-2, -1)) / 2;
           const auto mask = at::ones({3, 3}, q.options()).triu(1).to(at::kBool);
           return at::softmax(scores.masked_fill(mask, -1e9), -1).matmul(fit(c.c(), {2, 3, 4}));
         }),
  };
}

}  // namespace refrain_fuzz
