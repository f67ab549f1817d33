// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

/// Views, and ops that move elements.
inline Ops shape_ops() {
  const auto view = [](std::string name, auto run) {
    return op(std::move(name), 1, run, Kind::Alias);
  };
  return {
      view("transpose", [](Call& c) { return at_least(c.a(), 2).transpose(-1, -2); }),
      view("move_first",
           [](Call& c) {
             const auto x = at_least(c.a(), 2);
             return x.movedim(0, some_dim(c, x));
           }),
      view("flatten", [](Call& c) { return c.a().flatten(); }),
      view("unsqueeze",
           [](Call& c) { return small(c.a()).unsqueeze(c.dice.pick(c.a().dim() + 1)).squeeze(); }),
      view("squeeze", [](Call& c) { return c.a().squeeze(); }),
      view("view_matrix", [](Call& c) { return fit(c.a(), {2, 6}); }),
      view("narrow",
           [](Call& c) {
             const auto x = at_least(c.a(), 1);
             const auto dim = some_dim(c, x);
             return x.size(dim) < 2 ? x : x.narrow(dim, 1, x.size(dim) - 1);
           }),
      view("select",
           [](Call& c) {
             const auto x = at_least(c.a(), 2);
             return x.select(some_dim(c, x), 0);
           }),
      view("every_second",
           [](Call& c) {
             const auto x = at_least(c.a(), 1);
             return x.slice(some_dim(c, x), 0, std::nullopt, 2);
           }),
      view("expand",
           [](Call& c) {
             auto x = fit(c.a(), {2, 1, 3});
             return x.expand({2, 2, 3});
           }),
      view("diagonal", [](Call& c) { return at_least(c.a(), 2).diagonal(0, -2, -1); }),
      view("windows", [](Call& c) { return fit(c.a(), {6}).unfold(0, 2 + c.dice.pick(2), 2); }),
      view("strided",
           [](Call& c) { return fit(c.a(), {12}).as_strided({3, 2}, {2, 3}, c.dice.pick(3)); }),
      view("contiguous", [](Call& c) { return c.a().contiguous(); }),
      view("itself", [](Call& c) { return c.a(); }),
      view("detach", [](Call& c) { return c.a().detach(); }),
      view("alias", [](Call& c) { return at::alias(c.a()); }),
      list_op(
          "chunk", 1, 2,
          [](Call& c) {
            const auto x = fit(c.a(), {4, 3});
            return x.chunk(2, c.dice.pick(2));
          },
          Kind::Alias),
      list_op(
          "split", 1, 3, [](Call& c) { return fit(c.a(), {2, 6}).split(2, 1); }, Kind::Alias),
      list_op(
          "unbind", 1, 3, [](Call& c) { return fit(c.a(), {3, 4}).unbind(0); }, Kind::Alias),
      op("clone", 1, [](Call& c) { return c.a().clone(); }),
      op("cat", 2,
         [](Call& c) {
           const auto x = at_least(small(c.a()), 1);
           return at::cat({x, fit(c.b(), x.sizes())}, some_dim(c, x));
         }),
      op("stack", 2,
         [](Call& c) {
           const auto x = small(c.a());
           return at::stack({x, fit(c.b(), x.sizes())}, c.dice.pick(x.dim() + 1)).tanh();
         }),
      op("flip", 1,
         [](Call& c) {
           const auto x = at_least(c.a(), 1);
           return x.flip({some_dim(c, x)});
         }),
      op("roll", 1,
         [](Call& c) {
           const auto x = at_least(c.a(), 1);
           return x.roll({1 + c.dice.pick(2)}, {some_dim(c, x)});
         }),
      op("repeat", 1, [](Call& c) { return fit(c.a(), {2, 3}).repeat({2, 1 + c.dice.pick(2)}); }),
      op("repeat_interleave", 1,
         [](Call& c) { return fit(c.a(), {2, 3}).repeat_interleave(2, c.dice.pick(2)); }),
      op("tril", 1, [](Call& c) { return at_least(c.a(), 2).tril(c.dice.pick(2)); }),
      op("triu", 1, [](Call& c) { return at_least(c.a(), 2).triu(c.dice.pick(2)); }),
      op("pad", 1,
         [](Call& c) { return at::constant_pad_nd(fit(c.a(), {2, 3}), {1, c.dice.pick(2)}, 0.5); }),
      op("pad_reflect", 1,
         [](Call& c) { return at::reflection_pad1d(fit(c.a(), {2, 2, 4}), {1, 1}); }),
      op("pixel_shuffle", 1,
         [](Call& c) { return at::pixel_shuffle(fit(c.a(), {1, 4, 2, 2}), 2); }),
      op("complex_round_trip", 1,
         [](Call& c) {
           const auto z = at::view_as_complex(fit(c.a(), {3, 2}).to(at::kDouble).contiguous());
           return at::view_as_real(z * z.conj()).to(c.a().scalar_type()).tanh();
         }),
  };
}

}  // namespace refrain_fuzz
