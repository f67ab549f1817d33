// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace refrain_fuzz {

using Tensors = std::vector<at::Tensor>;

/// What a program owns besides its values: parameters, buffers, and a generator of its own.
struct State {
  Tensors parameters;
  Tensors buffers;  // running mean, running variance, batches tracked, a counter
  at::Generator generator;
};

/// Turns one number into a row of small choices.
class Dice {
 public:
  explicit Dice(std::uint32_t value) : value_(value) {}
  int pick(std::int64_t sides) {
    const auto n = static_cast<std::uint32_t>(sides);
    const auto side = value_ % n;
    value_ /= n;
    return static_cast<int>(side);
  }
  bool flip() { return pick(2) == 1; }
  double real() { return 0.25 * (1 + pick(7)); }

 private:
  std::uint32_t value_;
};

struct Call {
  const Tensors& in;
  Dice dice;
  State& state;

  [[nodiscard]] const at::Tensor& a() const { return in[0]; }
  [[nodiscard]] const at::Tensor& b() const { return in[1]; }
  [[nodiscard]] const at::Tensor& c() const { return in[2]; }
};

enum class Kind { Plain, Alias, InPlace, Random, Stateful, Source };

/// One kind of statement. Every op takes operands of any shape: what it cannot use it `fit`s.
/// So any operand may be exchanged for any other, which is what makes shrinking simple.
struct Op {
  std::string name;
  int arguments = 1;
  int results = 1;
  Kind kind = Kind::Plain;
  std::function<Tensors(Call&)> run;
};
using Ops = std::vector<Op>;

/// An op with one result.
template <class Run>
Op op(std::string name, int arguments, Run run, Kind kind = Kind::Plain) {
  return {std::move(name), arguments, 1, kind, [run](Call& call) { return Tensors{run(call)}; }};
}
/// An op with a list of results.
template <class Run>
Op list_op(std::string name, int arguments, int results, Run run, Kind kind = Kind::Plain) {
  return {std::move(name), arguments, results, kind,
          [run](Call& call) { return Tensors(run(call)); }};
}

/// `t` with this shape: its elements in order, repeated or cut as needed.
inline at::Tensor fit(const at::Tensor& t, at::IntArrayRef shape) {
  if (t.sizes() == shape) return t;
  const auto wanted = c10::multiply_integers(shape);
  auto flat = t.reshape(-1);
  if (flat.numel() == 0) return at::zeros(shape, t.options());
  if (flat.numel() < wanted) flat = flat.repeat({(wanted + flat.numel() - 1) / flat.numel()});
  return flat.narrow(0, 0, wanted).view(shape);
}
/// `t` with at least `count` dimensions.
inline at::Tensor at_least(at::Tensor t, std::int64_t count) {
  while (t.dim() < count) t = t.unsqueeze(0);
  return t;
}
/// `t`, cut to a size that keeps programs fast.
inline at::Tensor small(const at::Tensor& t) { return t.numel() <= 96 ? t : fit(t, {4, 4, 4}); }

inline at::Tensor matrix(const Call&, const at::Tensor& t) {
  return t.dim() == 2 && t.numel() > 0 ? t : fit(t, {3, 4});
}
inline std::int64_t some_dim(Call& call, const at::Tensor& t) { return call.dice.pick(t.dim()); }

/// Indices below `limit`: fixed ones, or ones computed from values.
inline at::Tensor indices(Call& call, const at::Tensor& from, at::IntArrayRef shape,
                          std::int64_t limit) {
  if (call.dice.flip()) {
    const auto values = fit(from.detach(), shape).abs().clamp(0, 100).nan_to_num();
    return (values * 7).to(at::kLong).remainder(limit);
  }
  const auto count = c10::multiply_integers(shape);
  return (at::arange(count, at::kLong) * (1 + call.dice.pick(3)) + call.dice.pick(4))
      .remainder(limit)
      .view(shape);
}

}  // namespace refrain_fuzz
