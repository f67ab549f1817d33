// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

/// Writes into the first operand, which is also the result. Autograd may refuse such a program;
/// then the checkpointed run must refuse it too.
inline Ops in_place_ops() {
  const auto in_place = [](std::string name, int arguments, auto run) {
    return op(
        std::move(name), arguments,
        [run](Call& c) {
          at::Tensor x = c.a();
          run(c, x);
          return x;
        },
        Kind::InPlace);
  };
  const auto like = [](const at::Tensor& t, const at::Tensor& x) { return fit(t, x.sizes()); };
  return {
      in_place("add_", 2, [=](Call& c, at::Tensor& x) { x.add_(like(c.b(), x)); }),
      in_place("add_number_", 1, [](Call& c, at::Tensor& x) { x.add_(c.dice.real()); }),
      in_place("mul_", 2, [=](Call& c, at::Tensor& x) { x.mul_(like(c.b(), x).tanh()); }),
      in_place("mul_number_", 1, [](Call& c, at::Tensor& x) { x.mul_(c.dice.real()); }),
      in_place("relu_", 1, [](Call&, at::Tensor& x) { x.relu_(); }),
      in_place("tanh_", 1, [](Call&, at::Tensor& x) { x.tanh_(); }),
      in_place("sigmoid_", 1, [](Call&, at::Tensor& x) { x.sigmoid_(); }),
      in_place("clamp_", 1, [](Call& c, at::Tensor& x) { x.clamp_(-1, c.dice.real()); }),
      in_place("masked_fill_", 2,
               [=](Call& c, at::Tensor& x) { x.masked_fill_(like(c.b(), x) > 0.5, 0.25); }),
      in_place("addcmul_", 3,
               [=](Call& c, at::Tensor& x) {
                 x.addcmul_(like(c.b(), x).tanh(), like(c.c(), x).tanh());
               }),
      in_place("copy_", 2, [=](Call& c, at::Tensor& x) { x.copy_(like(c.b(), x)); }),
      in_place("fill_first_", 1,
               [](Call& c, at::Tensor& x) {
                 if (x.dim() > 0 && x.size(0) > 0) x[0].fill_(c.dice.real());
               }),
      in_place("add_to_first_", 2,
               [=](Call& c, at::Tensor& x) {
                 if (x.dim() > 0 && x.size(0) > 0) x[0].add_(like(c.b(), x[0]));
               }),
      in_place("scale_narrow_", 1,
               [](Call& c, at::Tensor& x) {
                 if (x.dim() > 0 && x.size(-1) > 1)
                   x.narrow(-1, 1, x.size(-1) - 1).mul_(c.dice.real());
               }),
      in_place("index_fill_", 1,
               [](Call& c, at::Tensor& x) {
                 if (x.dim() > 0 && x.size(0) > 0)
                   x.index_fill_(0, at::zeros({1}, at::kLong), c.dice.real());
               }),
      in_place("zero_", 1,
               [](Call& c, at::Tensor& x) {
                 if (c.dice.flip()) x.zero_();
               }),
      in_place("transpose_", 1,
               [](Call&, at::Tensor& x) {
                 if (x.dim() > 1) x.transpose_(0, 1);
               }),
      // Whole small stories that autograd always accepts.
      op("sum_then_relu", 2, [=](Call& c) { return (c.a() + like(c.b(), c.a())).relu_(); }),
      op("linear_then_tanh", 2,
         [](Call& c) { return fit(c.a(), {3, 4}).mm(fit(c.b(), {4, 3})).mul_(0.5).tanh_(); }),
      op("fill_a_buffer", 2,
         [](Call& c) {
           auto out = at::zeros({2, 2, 3}, c.a().options());
           out[0].copy_(fit(c.a(), {2, 3}));
           out.select(0, 1).copy_(fit(c.b(), {2, 3}).sin());
           return out;
         }),
      op("accumulate_rows", 2,
         [](Call& c) {
           auto total = fit(c.a(), {4}) * 0.5;
           for (const auto& row : fit(c.b(), {3, 4}).unbind(0)) total += row.tanh();
           return total;
         }),
      op("exp_then_out", 1,
         [](Call& c) {
           auto out = at::empty_like(c.a().detach());
           {
             at::NoGradGuard guard;
             at::tanh_out(out, c.a().detach());
           }
           return out * c.a();
         }),
  };
}

}  // namespace refrain_fuzz
