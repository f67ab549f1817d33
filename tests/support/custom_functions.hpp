// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

namespace support {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// sin and cos of an input, with a backward that needs the input and both outputs. `Order` says
/// how they are saved; an early stop that throws among them would leak or leave one unfilled.
template <class Order>
struct SinCos : torch::autograd::Function<SinCos<Order>> {
  static variable_list forward(AutogradContext* ctx, const torch::Tensor& x) {
    auto sin = x.sin();
    auto cos = x.cos();
    ctx->save_for_backward(Order::arrange(x, sin, cos));
    return {sin, cos};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto [sin, cos] = Order::outputs(saved);
    auto grad = torch::zeros_like(sin);
    if (grads[0].defined()) grad = grad + grads[0] * cos;
    if (grads[1].defined()) grad = grad - grads[1] * sin;
    return {grad};
  }
};

struct InputFirst {
  static variable_list arrange(torch::Tensor x, torch::Tensor sin, torch::Tensor cos) {
    return {x, sin, cos};
  }
  static std::pair<torch::Tensor, torch::Tensor> outputs(const variable_list& saved) {
    return {saved[1], saved[2]};
  }
};
struct InputLast {
  static variable_list arrange(torch::Tensor x, torch::Tensor sin, torch::Tensor cos) {
    return {sin, cos, x};
  }
  static std::pair<torch::Tensor, torch::Tensor> outputs(const variable_list& saved) {
    return {saved[0], saved[1]};
  }
};
struct NoInput {
  static variable_list arrange(torch::Tensor, torch::Tensor sin, torch::Tensor cos) {
    return {sin, cos};
  }
  static std::pair<torch::Tensor, torch::Tensor> outputs(const variable_list& saved) {
    return {saved[0], saved[1]};
  }
};

using SavesInputThenOutputs = SinCos<InputFirst>;
using SavesOutputsThenInput = SinCos<InputLast>;
using SavesOnlyOutputs = SinCos<NoInput>;

/// x * x, whose backward reads what it saved `Times` times.
template <int Times>
struct SquareReading : torch::autograd::Function<SquareReading<Times>> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x) {
    ctx->save_for_backward({x});
    return x * x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto total = torch::zeros_like(grads[0]);
    for (int i = 0; i < Times; ++i) total = total + ctx->get_saved_variables()[0];
    return {grads[0] * 2 * total / Times};
  }
};

}  // namespace support
