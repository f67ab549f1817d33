// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/table.hpp"
#include "fuzz/program.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/keep.hpp>
#include <refrain/options.hpp>
#include <refrain/policy/ops.hpp>
#include <refrain/replay.hpp>
#include <refrain/tier/arena.hpp>
#include <refrain/tier/counted.hpp>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace refrain_fuzz {

using Values = std::map<int, at::Tensor>;
namespace policy = refrain::policy;

/// bfloat16 autocast on the CPU while it lives, or none.
class AutocastScope {
 public:
  explicit AutocastScope(bool on) : before_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, on);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool before_;
};

/// Where what programs move waits.
inline const refrain::tier::Counted& waiting_room() {
  static const auto room = refrain::tier::counted(refrain::tier::arena(refrain::Bytes(64 << 20)));
  return room;
}

/// Runs the statements of one program. Regions keep a pointer to it: it lives as long as they do.
class Machine : public std::enable_shared_from_this<Machine> {
 public:
  explicit Machine(const Program& program) : program_(program) {
    const auto dtype = program.settings.wide ? at::kDouble : at::kFloat;
    state_.parameters = {at::randn({4, 4}, dtype), at::randn({4}, dtype), at::randn({4, 3}, dtype)};
    for (auto& parameter : state_.parameters) parameter.requires_grad_();
    state_.buffers = {at::zeros({3}, dtype), at::ones({3}, dtype), at::zeros({}, at::kLong),
                      at::ones({1}, dtype)};
    state_.generator = at::make_generator<at::CPUGeneratorImpl>(program.settings.seed);
  }

  /// The program's outputs.
  Tensors forward() {
    AutocastScope autocast(program_.settings.autocast);
    Values values;
    if (program_.settings.nested) return nested();
    run(program_.body, values);
    return pick(values, program_.outputs);
  }

  [[nodiscard]] const State& state() const { return state_; }
  [[nodiscard]] const Tensors& leaves() const { return leaves_; }

 private:
  /// Sources outside, everything else inside one region.
  Tensors nested() {
    Values values;
    std::vector<Statement> sources;
    inner_.op = "region";
    inner_.results = inner_.yields = program_.outputs;
    for (const auto& s : program_.body) {
      const bool outside = !s.is_block() && find_op(s.op).kind == Kind::Source;
      (outside ? sources : inner_.body).push_back(s);
    }
    run(sources, values);
    return region(inner_, values);
  }

  void run(const std::vector<Statement>& body, Values& values) {
    for (const auto& s : body) {
      const auto results = s.is_block() ? block(s, values) : operation(s, values);
      for (std::size_t i = 0; i < s.results.size(); ++i) {
        values[s.results[i]] = results.at(i % results.size());
      }
    }
  }

  static Tensors pick(const Values& values, const std::vector<int>& ids) {
    Tensors out;
    for (int id : ids) out.push_back(values.at(id));
    return out;
  }

  Tensors operation(const Statement& s, Values& values) {
    const auto& op = find_op(s.op);
    auto in = pick(values, s.arguments);
    for (auto& t : in)
      t = t.to(state_.parameters[0].scalar_type());  // autocast leaves others behind
    if (s.copy_first) in[0] = in[0].clone();
    Call call{in, Dice(s.attribute), state_};
    auto out = op.run(call);
    if (op.kind == Kind::Source) {
      if (out[0].requires_grad()) leaves_.push_back(out[0]);
      if (s.op == "derived") out[0] = out[0] * 0.75;
    }
    return out;
  }

  Tensors block(const Statement& s, const Values& values) {
    if (s.is_region()) return region(s, values);
    Values inside = values;
    if (s.op == "autocast") {
      AutocastScope autocast(!program_.settings.wide);
      return scoped(s, inside);
    }
    if (s.op == "keep") return refrain::keep("block", [&] { return scoped(s, inside); });
    at::AutoGradMode mode(s.op == "enable_grad");
    return scoped(s, inside);
  }
  Tensors scoped(const Statement& s, Values& inside) {
    run(s.body, inside);
    return pick(inside, s.yields);
  }

  // --- regions: the same body through every shape of call that the library takes ---------------

  static policy::OpPolicy products() { return policy::keep_matmuls() + policy::keep_attention(); }
  static policy::OpPolicy pointwise() {
    return policy::keep_ops({"sin", "cos", "tanh", "exp", "mul", "add", "_softmax", "sum", "cat"});
  }

  refrain::CheckpointOptions options(const Statement& s, bool declare_state) const {
    const auto& settings = program_.settings;
    refrain::CheckpointOptions options;
    options.early_stop(settings.early_stop ? refrain::EarlyStop::On : refrain::EarlyStop::Off)
        .rng(settings.preserve_rng ? refrain::Rng::Preserve : refrain::Rng::Ignore)
        .check(settings.values  ? refrain::Check::Values
               : settings.check ? refrain::Check::Metadata
                                : refrain::Check::None)
        .route(settings.function_route ? refrain::Route::Function : refrain::Route::Hooks);
    switch (settings.kept) {
      case Kept::Nothing:
        break;
      case Kept::Products:
        options.keep(products());
        break;
      case Kept::Random:
        options.keep(policy::keep_random());
        break;
      case Kept::Pointwise:
        options.keep(pointwise());
        break;
      case Kept::All:
        options.keep(products() + policy::keep_random() + pointwise());
        break;
      case Kept::NoNames:
        options.keep(policy::keep_named({}));
        break;
    }
    bool stateful = false;
    bool generator = false;
    for_each_statement(s.body, [&](const Statement& inner) {
      if (inner.is_block()) return;
      stateful = stateful || find_op(inner.op).kind == Kind::Stateful;
      generator = generator || inner.op == "own_generator";
    });
    if (stateful && declare_state) options.state(state_.buffers);
    if (generator) options.generators({state_.generator});
    if (settings.moved != Moved::Nothing) options.tier(waiting_room(), refrain::Bytes(1));
    if (settings.moved == Moved::Saved) options.saved(refrain::Saved::Moved);
    return options;
  }

  /// The body as a function of its arguments, with everything else captured.
  auto function(const Statement& s, const Values& values) {
    Values captured;
    for (int id : free_values(s.body, s.yields)) {
      if (std::ranges::find(s.arguments, id) == s.arguments.end()) captured[id] = values.at(id);
    }
    return [self = shared_from_this(), &s, captured](const Tensors& arguments) {
      Values inside = captured;
      for (std::size_t i = 0; i < arguments.size(); ++i) inside[s.arguments[i]] = arguments[i];
      return self->scoped(s, inside);
    };
  }

  Tensors region(const Statement& s, const Values& values);

  friend class BlockImpl;

  const Program& program_;
  State state_;
  Tensors leaves_;
  Statement inner_;
};

/// A region as a module that owns the program's parameters and buffers.
class BlockImpl : public torch::nn::Module {
 public:
  using Body = std::function<Tensors(const Tensors&)>;
  BlockImpl(Body body, const State& state) : body_(std::move(body)) {
    for (std::size_t i = 0; i < state.parameters.size(); ++i) {
      register_parameter("p" + std::to_string(i), state.parameters[i]);
    }
    for (std::size_t i = 0; i < state.buffers.size(); ++i) {
      register_buffer("b" + std::to_string(i), state.buffers[i]);
    }
  }
  Tensors forward(Tensors arguments) { return body_(arguments); }

 private:
  Body body_;
};
TORCH_MODULE(Block);

inline Tensors Machine::region(const Statement& s, const Values& values) {
  Dice dice(s.attribute);
  const int shape = dice.pick(6);
  const auto with = options(s, dice.flip());
  const auto body = function(s, values);
  const auto in = pick(values, s.arguments);
  const auto two = [](const Tensors& t) { return std::pair(t.at(0), t.at(t.size() - 1)); };

  if (shape == 0) return refrain::checkpoint(Block(body, state_), with)(in);
  if (shape == 1 && in.size() == 1 && s.yields.size() == 1) {
    return {refrain::checkpoint([body](at::Tensor x) { return body({x})[0]; }, with)(in[0])};
  }
  if (shape == 2 && in.size() == 2 && s.yields.size() <= 2) {
    auto call = refrain::checkpoint(
        [body, two](const at::Tensor& x, std::tuple<at::Tensor, int> y) {
          return two(body({x, std::get<0>(y)}));
        },
        with);
    const auto [first, second] = call(in[0], std::tuple(in[1], 3));
    return {first, second};
  }
  if (shape == 3) {
    auto call = refrain::checkpoint(
        [body](std::map<int, at::Tensor> named, std::optional<at::Tensor> nothing, double number) {
          Tensors arguments;
          for (auto& [key, tensor] : named) arguments.push_back(tensor);
          std::map<int, std::optional<at::Tensor>> out{{-1, nothing}};
          for (auto& tensor : body(arguments)) out[static_cast<int>(out.size())] = tensor;
          out[100 + static_cast<int>(number)] = std::nullopt;
          return out;
        },
        with);
    std::map<int, at::Tensor> named;
    for (const auto& tensor : in) named[static_cast<int>(named.size())] = tensor;
    Tensors out;
    for (auto& [key, tensor] : call(named, std::nullopt, 2.0)) {
      if (tensor) out.push_back(*tensor);
    }
    return out;
  }
  return refrain::checkpoint([body](Tensors arguments) { return body(arguments); }, with)(in);
}

}  // namespace refrain_fuzz
