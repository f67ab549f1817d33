// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

/// Gathering, scattering, sorting.
inline Ops indexing_ops() {
  using at::indexing::Slice;
  return {
      op("index_select", 2,
         [](Call& c) {
           const auto x = at_least(small(c.a()), 1);
           const auto dim = some_dim(c, x);
           if (x.size(dim) == 0) return x.clone();
           return x.index_select(dim, indices(c, c.b(), {3}, x.size(dim)));
         }),
      op("gather", 2,
         [](Call& c) { return fit(c.a(), {3, 4}).gather(1, indices(c, c.b(), {3, 2}, 4)); }),
      op("scatter", 3,
         [](Call& c) {
           return fit(c.a(), {3, 4}).scatter(0, indices(c, c.b(), {2, 4}, 3), fit(c.c(), {2, 4}));
         }),
      op("scatter_add", 3,
         [](Call& c) {
           return fit(c.a(), {3, 4})
               .scatter_add(1, indices(c, c.b(), {3, 2}, 4), fit(c.c(), {3, 2}));
         }),
      op("scatter_reduce", 3,
         [](Call& c) {
           return fit(c.a(), {4})
               .scatter_reduce(0, indices(c, c.b(), {6}, 4), fit(c.c(), {6}), "amax");
         }),
      op("index", 2,
         [](Call& c) { return fit(c.a(), {4, 3}).index({indices(c, c.b(), {2, 2}, 4), Slice()}); }),
      op("index_by_mask", 2,
         [](Call& c) {
           const auto x = fit(c.a(), {3, 4});
           return x.index({fit(c.b(), {3, 4}) > 0}).sum() * 0.3;
         }),
      op("index_put", 3,
         [](Call& c) {
           return fit(c.a(), {4, 3})
               .index_put({indices(c, c.b(), {2}, 4)}, fit(c.c(), {2, 3}), c.dice.flip());
         }),
      op("index_add", 3,
         [](Call& c) {
           return fit(c.a(), {4, 3})
               .index_add(0, indices(c, c.b(), {2}, 4), fit(c.c(), {2, 3}), c.dice.real());
         }),
      op("index_fill", 2,
         [](Call& c) {
           return fit(c.a(), {4, 3}).index_fill(0, indices(c, c.b(), {2}, 4), c.dice.real());
         }),
      op("masked_select", 2,
         [](Call& c) { return fit(c.a(), {12}).masked_select(fit(c.b(), {12}) < 0.3).tanh(); }),
      op("masked_scatter", 3,
         [](Call& c) {
           return fit(c.a(), {12}).masked_scatter(fit(c.b(), {12}) > 0, fit(c.c(), {12}));
         }),
      op("take", 2, [](Call& c) { return fit(c.a(), {3, 4}).take(indices(c, c.b(), {2, 3}, 12)); }),
      op("take_along", 2,
         [](Call& c) {
           const auto x = fit(c.a(), {3, 4});
           return x.take_along_dim(fit(c.b(), {3, 4}).argsort(std::int64_t{1}, false), 1);
         }),
      op("embedding", 2,
         [](Call& c) { return at::embedding(fit(c.a(), {4, 3}), indices(c, c.b(), {2, 3}, 4)); }),
      op("embedding_bag", 2,
         [](Call& c) {
           const auto offsets = at::arange(2, at::kLong) * 3;
           return std::get<0>(at::embedding_bag(fit(c.a(), {4, 3}), indices(c, c.b(), {6}, 4),
                                                offsets, false, c.dice.pick(2)));
         }),
      list_op("sort", 1, 2,
              [](Call& c) {
                const auto x = at_least(c.a(), 1);
                auto [values, order] = x.sort(some_dim(c, x), c.dice.flip());
                return Tensors{values, order.to(x.scalar_type()) * 0.1};
              }),
      list_op("topk", 1, 2,
              [](Call& c) {
                auto [values, order] = fit(c.a(), {3, 4}).topk(2);
                return Tensors{values, order.to(values.scalar_type()) * 0.1};
              }),
      op("kthvalue", 1,
         [](Call& c) { return std::get<0>(fit(c.a(), {3, 4}).kthvalue(2, c.dice.pick(2))); }),
      op("median", 1, [](Call& c) { return std::get<0>(fit(c.a(), {3, 4}).median(1)); }),
      op("argmax", 1,
         [](Call& c) { return fit(c.a(), {3, 4}).argmax(1).to(c.a().scalar_type()) * 0.2; }),
      op("one_hot", 2,
         [](Call& c) {
           return at::one_hot(indices(c, c.a(), {4}, 3), 3).to(c.a().scalar_type()) *
                  fit(c.b(), {4, 3});
         }),
      op("select_scatter", 2,
         [](Call& c) {
           return at::select_scatter(fit(c.a(), {3, 4}), fit(c.b(), {4}), 0, c.dice.pick(3));
         }),
  };
}

}  // namespace refrain_fuzz
