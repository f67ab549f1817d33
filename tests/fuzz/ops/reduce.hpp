// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

/// Sums, extremes, running sums and softmaxes.
inline Ops reduce_ops() {
  const auto along = [](std::string name, auto run) {
    return op(std::move(name), 1, [run](Call& c) {
      const auto x = c.a().numel() == 0 ? fit(c.a(), {2, 3}) : at_least(c.a(), 1);
      const auto dim = some_dim(c, x);
      return run(x, dim);
    });
  };
  return {
      op("sum", 1, [](Call& c) { return c.a().sum() * 0.2; }),
      op("norm", 1, [](Call& c) { return (c.a() + 0.5).norm(c.dice.flip() ? 2 : 3); }),
      op("trace", 1, [](Call& c) { return fit(c.a(), {3, 3}).trace(); }),
      op("max_of_all", 1, [](Call& c) { return fit(c.a(), {6}).max(); }),
      along("sum_along", [](auto& x, auto dim) { return x.sum(dim).tanh(); }),
      along("mean_along", [](auto& x, auto dim) { return x.mean(dim, true); }),
      along("logsumexp", [](auto& x, auto dim) { return x.logsumexp(dim); }),
      along("amax", [](auto& x, auto dim) { return x.amax(dim); }),
      along("max_along", [](auto& x, auto dim) { return std::get<0>(x.max(dim)); }),
      along("product", [](auto& x, auto dim) { return x.tanh().prod(dim); }),
      along("cumsum", [](auto& x, auto dim) { return x.cumsum(dim).tanh(); }),
      along("cumprod", [](auto& x, auto dim) { return x.tanh().cumprod(dim); }),
      along("cummax", [](auto& x, auto dim) { return std::get<0>(x.cummax(dim)); }),
      along("logcumsumexp", [](auto& x, auto dim) { return x.logcumsumexp(dim); }),
      along("softmax", [](auto& x, auto dim) { return x.softmax(dim); }),
      along("log_softmax", [](auto& x, auto dim) { return x.log_softmax(dim); }),
      along("difference", [](auto& x, auto dim) { return x.diff(1, dim); }),
      list_op("variance_and_mean", 1, 2,
              [](Call& c) {
                auto [variance, mean] =
                    at::var_mean(fit(c.a(), {3, 4}), at::OptionalIntArrayRef({1}), 1);
                return Tensors{variance, mean};
              }),
      op("deviation", 1,
         [](Call& c) {
           return fit(c.a() + at::arange(c.a().numel(), c.a().options()).view_as(c.a()), {3, 4})
               .std(1);
         }),
      op("normalize", 1,
         [](Call& c) { return torch::nn::functional::normalize(fit(c.a(), {3, 4}) + 0.1); }),
      list_op("extremes", 1, 2,
              [](Call& c) {
                const auto x = fit(c.a(), {3, 4});
                return Tensors{x.amin(1), x.amax(1)};
              }),
      op("trapezoid", 1, [](Call& c) { return at::trapezoid(fit(c.a(), {3, 4})) * 0.3; }),
  };
}

}  // namespace refrain_fuzz
