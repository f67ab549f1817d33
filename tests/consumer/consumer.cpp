// SPDX-License-Identifier: BSD-3-Clause
// A user's program: one gradient with and without checkpointing.
#include <refrain/refrain.hpp>

#include <ATen/ATen.h>

int main() {
  const auto w = at::ones({4, 4}).requires_grad_();
  const auto body = [w](const at::Tensor& x) { return x.mm(w).sin(); };
  const auto gradient = [&w](const at::Tensor& y) {
    w.mutable_grad() = at::Tensor();
    y.sum().backward();
    return w.grad().clone();
  };
  const auto x = at::ones({2, 4});
  const auto plain = gradient(body(x));
  return at::equal(plain, gradient(refrain::checkpoint(body)(x))) ? 0 : 1;
}
