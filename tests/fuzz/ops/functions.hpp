// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

namespace functions {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// x² and its own input.
struct Square : Function<Square> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return x * x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    return {2 * ctx->get_saved_variables()[0] * g[0]};
  }
};

/// tanh, saving what it gives out; `order` says what else and where.
struct Tanh : Function<Tanh> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t order) {
    auto y = x.tanh();
    if (order == 0) ctx->save_for_backward({y});
    if (order == 1) ctx->save_for_backward({x, y});
    if (order == 2) ctx->save_for_backward({y, x});
    ctx->saved_data["at"] = order == 2 ? 0 : order;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    const auto at = static_cast<std::size_t>(ctx->saved_data["at"].toInt());
    const auto y = ctx->get_saved_variables().at(at);
    return {g[0] * (1 - y * y), {}};
  }
};

/// x · y, reading its saved tensors twice.
struct Product : Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y) {
    ctx->save_for_backward({x, y});
    return x * y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    return {g[0] * ctx->get_saved_variables()[1], g[0] * ctx->get_saved_variables()[0]};
  }
};

/// Two results, one of them saved, and a scalar kept beside.
struct SinCos : Function<SinCos> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, double scale) {
    auto s = (x * scale).sin();
    auto c = (x * scale).cos();
    ctx->save_for_backward({s, x});
    ctx->saved_data["scale"] = scale;
    return {s, c};
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    const auto saved = ctx->get_saved_variables();
    const auto scale = ctx->saved_data["scale"].toDouble();
    return {(g[0] * (saved[1] * scale).cos() - g[1] * saved[0]) * scale, at::Tensor()};
  }
};

/// Doubles its input in place.
struct Twice : Function<Twice> {
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x) {
    x.mul_(2);
    ctx->mark_dirty({x});
    return x;
  }
  static variable_list backward(AutogradContext*, variable_list g) { return {2 * g[0]}; }
};

/// Builds nodes inside its forward and saves one of the results it made there.
struct InnerGraph : Function<InnerGraph> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    at::Tensor y;
    {
      at::AutoGradMode on(true);
      const auto leaf = x.detach().requires_grad_();
      y = leaf.sin() * leaf;
      ctx->save_for_backward({torch::autograd::grad({y.sum()}, {leaf})[0]});
    }
    return y.detach();
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    return {g[0] * ctx->get_saved_variables()[0]};
  }
};

/// Saves nothing.
struct Reverse : Function<Reverse> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list g) { return {-0.5 * g[0]}; }
};

/// A value from a gradient taken on the way, through the live graph or beside it.
inline at::Tensor gradient_inside(Call& c) {
  const auto create = c.dice.flip();
  const auto x = c.dice.flip() && c.a().requires_grad() ? c.a() : c.a().detach().requires_grad_();
  at::AutoGradMode on(true);
  const auto energy = (x.sin() * fit(c.b(), x.sizes()) + x * x).sum();
  return torch::autograd::grad({energy}, {x}, {}, true, create)[0] * fit(c.b(), x.sizes());
}

}  // namespace functions

/// Custom autograd Functions, tensor hooks, gradients inside the forward.
inline Ops function_ops() {
  using namespace functions;
  return {
      op("square_function", 1, [](Call& c) { return Square::apply(c.a().tanh()); }),
      op("tanh_function", 1, [](Call& c) { return Tanh::apply(c.a(), c.dice.pick(3)); }),
      op("product_function", 2,
         [](Call& c) { return Product::apply(c.a(), fit(c.b(), c.a().sizes()).tanh()); }),
      list_op("sincos_function", 1, 2, [](Call& c) { return SinCos::apply(c.a(), c.dice.real()); }),
      op("twice_function", 1, [](Call& c) { return Twice::apply(c.a().sin()); }),
      op("inner_graph_function", 1, [](Call& c) { return InnerGraph::apply(c.a()); }),
      op("reverse_function", 1, [](Call& c) { return Reverse::apply(c.a()); }),
      op("gradient_inside", 2, &gradient_inside),
      op("hook", 1,
         [](Call& c) {
           auto x = c.a() * 1.5;
           const auto scale = c.dice.real();
           if (x.requires_grad())
             x.register_hook([scale](const at::Tensor& g) { return g * scale; });
           return x.sin();
         }),
      op("branch_on_value", 1,
         [](Call& c) {
           return c.a().detach().sum().item<double>() > 0 ? c.a().exp().log1p()
                                                          : c.a().sin() * c.a();
         }),
      op("loop", 2,
         [](Call& c) {
           auto x = fit(c.a(), {3});
           for (int i = c.dice.pick(3); i >= 0; --i) x = (x * fit(c.b(), {3})).tanh() + x;
           return x;
         }),
  };
}

}  // namespace refrain_fuzz
