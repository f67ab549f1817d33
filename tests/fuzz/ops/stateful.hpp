// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

namespace ops {

inline at::Tensor source(Call& c, bool requires_grad) {
  static const std::vector<std::vector<std::int64_t>> kShapes = {{3, 4}, {4}, {2, 3, 4}, {4, 4}, {},
                                                                 {2, 2}, {6}, {1, 2, 4}};
  const auto& shape = kShapes[static_cast<std::size_t>(c.dice.pick(8))];
  return at::randn(shape, c.state.parameters[0].options()).requires_grad_(requires_grad);
}

inline at::Tensor batch_norm(Call& c) {
  auto& buffers = c.state.buffers;
  buffers[2].add_(1);
  return at::batch_norm(fit(c.a(), {2, 3, 2}), c.state.parameters[1].narrow(0, 0, 3), {},
                        buffers[0], buffers[1], true, 0.25, 1e-3, false);
}

}  // namespace ops

/// Parameters and buffers of the program, and the tensors it starts from.
inline Ops stateful_ops() {
  return {
      op(
          "leaf", 0, [](Call& c) { return ops::source(c, true); }, Kind::Source),
      op(
          "data", 0, [](Call& c) { return ops::source(c, false); }, Kind::Source),
      op(
          "derived", 0, [](Call& c) { return ops::source(c, true); }, Kind::Source),
      op(
          "parameter", 0,
          [](Call& c) { return c.state.parameters[static_cast<std::size_t>(c.dice.pick(3))]; },
          Kind::Alias),
      op("linear_layer", 1,
         [](Call& c) {
           const auto& p = c.state.parameters;
           return at::linear(fit(c.a(), {3, 4}), p[0], p[1]);
         }),
      op("tied_layer", 1,
         [](Call& c) {
           const auto& w = c.state.parameters[0];
           return at::linear(at::linear(fit(c.a(), {3, 4}), w).tanh(), w.t());
         }),
      op("ones", 0, [](Call& c) { return at::ones({2, 3}, c.state.parameters[0].options()); }),
      op("range", 0, [](Call& c) { return at::arange(6, c.state.parameters[0].options()) * 0.2; }),
      op("batch_norm", 1, &ops::batch_norm, Kind::Stateful),
      op(
          "instance_norm_running", 1,
          [](Call& c) {
            auto& buffers = c.state.buffers;
            return at::instance_norm(fit(c.a(), {2, 3, 4}), {}, {}, buffers[0], buffers[1], true,
                                     0.1, 1e-3, false);
          },
          Kind::Stateful),
      op(
          "count_calls", 1,
          [](Call& c) {
            auto& counter = c.state.buffers[3];
            counter.add_(1);
            return c.a() * counter.reciprocal();
          },
          Kind::Stateful),
  };
}

}  // namespace refrain_fuzz
