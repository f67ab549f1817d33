// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/op.hpp"

namespace refrain_fuzz {

/// Element by element; kept in range so that long programs stay finite.
inline Ops pointwise_ops() {
  const auto one = [](std::string name, at::Tensor (*f)(const at::Tensor&)) {
    return op(std::move(name), 1, [f](Call& c) { return f(c.a()); });
  };
  const auto two = [](std::string name, at::Tensor (*f)(const at::Tensor&, const at::Tensor&)) {
    return op(std::move(name), 2, [f](Call& c) { return f(c.a(), fit(c.b(), c.a().sizes())); });
  };
  return {
      one("sin", &at::sin),
      one("cos", &at::cos),
      one("tanh", &at::tanh),
      one("sigmoid", &at::sigmoid),
      one("relu", &at::relu),
      one("silu", &at::silu),
      one("mish", &at::mish),
      one("abs", &at::abs),
      one("erf", &at::erf),
      one("selu", &at::selu),
      one("log_sigmoid", &at::log_sigmoid),
      one("round", &at::round),
      one("square", &at::square),
      one("hardswish", &at::hardswish),
      one("atan", &at::atan),
      one("asinh", &at::asinh),
      op("exp", 1, [](Call& c) { return c.a().tanh().exp(); }),
      op("log", 1, [](Call& c) { return (c.a().abs() + 1).log(); }),
      op("sqrt", 1, [](Call& c) { return (c.a() * c.a() + 1).sqrt(); }),
      op("rsqrt", 1, [](Call& c) { return (c.a().abs() + c.dice.real()).rsqrt(); }),
      op("reciprocal", 1, [](Call& c) { return (c.a().square() + 1).reciprocal(); }),
      op("power", 1, [](Call& c) { return c.a().tanh().pow(1 + c.dice.pick(3)); }),
      op("power_of", 2,
         [](Call& c) { return (c.a().tanh() + 2).pow(fit(c.b(), c.a().sizes()).tanh()); }),
      op("gelu", 1, [](Call& c) { return at::gelu(c.a(), c.dice.flip() ? "tanh" : "none"); }),
      op("leaky_relu", 1, [](Call& c) { return at::leaky_relu(c.a(), 0.1 * c.dice.real()); }),
      op("softplus", 1, [](Call& c) { return at::softplus(c.a(), c.dice.real()); }),
      op("elu", 1, [](Call& c) { return at::elu(c.a(), c.dice.real()); }),
      op("hardtanh", 1, [](Call& c) { return at::hardtanh(c.a(), -c.dice.real(), 1.0); }),
      op("clamp", 1, [](Call& c) { return c.a().clamp(-c.dice.real(), c.dice.real()); }),
      op("threshold", 1, [](Call& c) { return at::threshold(c.a(), c.dice.real() - 1, 0.5); }),
      op("add_number", 1, [](Call& c) { return c.a() + c.dice.real(); }),
      op("times_number", 1, [](Call& c) { return c.a() * c.dice.real(); }),
      op("number_minus", 1, [](Call& c) { return c.dice.real() - c.a(); }),
      op("divide_number", 1, [](Call& c) { return c.a() / c.dice.real(); }),
      op("add", 2,
         [](Call& c) { return at::add(c.a(), fit(c.b(), c.a().sizes()), c.dice.real()); }),
      op("sub", 2, [](Call& c) { return c.a() - fit(c.b(), c.a().sizes()); }),
      op("mul", 2, [](Call& c) { return c.a() * fit(c.b(), c.a().sizes()).tanh(); }),
      op("div", 2, [](Call& c) { return c.a() / (1 + fit(c.b(), c.a().sizes()).square()); }),
      op("add_row", 2,
         [](Call& c) { return at_least(c.a(), 1) + fit(c.b(), {at_least(c.a(), 1).size(-1)}); }),
      op("mul_scalar_tensor", 2, [](Call& c) { return c.a() * fit(c.b(), {}).tanh(); }),
      two("maximum", &at::maximum),
      two("minimum", &at::minimum),
      two("logaddexp", &at::logaddexp),
      op("atan2", 2,
         [](Call& c) { return at::atan2(c.a(), fit(c.b(), c.a().sizes()).abs() + 0.5); }),
      op("where", 3,
         [](Call& c) {
           return at::where(c.a() > 0, fit(c.b(), c.a().sizes()), fit(c.c(), c.a().sizes()));
         }),
      op("lerp", 3,
         [](Call& c) {
           return at::lerp(c.a(), fit(c.b(), c.a().sizes()), fit(c.c(), c.a().sizes()).sigmoid());
         }),
      op("addcmul", 3,
         [](Call& c) {
           return at::addcmul(c.a(), fit(c.b(), c.a().sizes()).tanh(), fit(c.c(), c.a().sizes()),
                              0.5);
         }),
      op("masked_fill", 2,
         [](Call& c) { return c.a().masked_fill(fit(c.b(), c.a().sizes()) > 0, c.dice.real()); }),
      op("prelu", 2, [](Call& c) { return at::prelu(fit(c.a(), {2, 3, 2}), fit(c.b(), {3})); }),
      op("glu", 1, [](Call& c) { return at::glu(fit(c.a(), {3, 4}), 1); }),
      list_op("foreach_add", 2, 2,
              [](Call& c) {
                return at::_foreach_add(Tensors{c.a(), c.b().tanh()}, Tensors{c.a().sin(), c.b()});
              }),
      op("to_half_and_back", 1,
         [](Call& c) { return c.a().to(at::kBFloat16).to(c.a().scalar_type()); }),
  };
}

}  // namespace refrain_fuzz
