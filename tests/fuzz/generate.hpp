// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/table.hpp"
#include "fuzz/program.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace refrain_fuzz {

/// Builds random programs; the same seed builds the same program everywhere.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : engine_(seed) {}

  Program program() {
    Program program;
    auto& s = program.settings;
    s.drive = static_cast<Drive>(one_in(2) ? 0 : below(kDriveCount));
    s.wide = one_in(2);
    s.early_stop = !one_in(4);
    s.preserve_rng = random_ = !one_in(6);
    s.check = !one_in(8);
    s.function_route = one_in(10);
    if (s.function_route) s.drive = one_in(2) ? Drive::Backward : Drive::Thread;
    inner_gradients_ = s.drive != Drive::Thread && s.drive != Drive::Interrupted;
    s.autocast = !s.wide && one_in(5);
    s.nested = one_in(6);
    s.kept = static_cast<Kept>(one_in(2) ? 0 : below(kKeptCount));
    s.values = s.check && one_in(4);
    s.recorded = one_in(3);
    s.moved = static_cast<Moved>(one_in(2) ? 0 : below(kMovedCount));
    s.seed = static_cast<std::uint32_t>(engine_());

    Scope scope;
    for (int i = 2 + below(3); i > 0; --i) program.body.push_back(source(scope));
    for (int i = 1 + below(4); i > 0; --i) {
      program.body.push_back(one_in(3) ? operation(scope) : region(scope, 1));
    }
    program.outputs = outputs(program.body);
    return program;
  }

 private:
  static constexpr int kDriveCount = 9;
  static constexpr int kKeptCount = 6;
  static constexpr int kMovedCount = 3;
  static constexpr int kDepth = 3;
  using Scope = std::vector<int>;  // the values that can be read, oldest first

  int below(int limit) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(limit)); }
  bool one_in(int chances) { return below(chances) == 0; }

  int value(const Scope& scope) {
    const auto size = static_cast<int>(scope.size());
    const auto reach = one_in(3) ? size : std::min(size, 3);
    return scope[static_cast<std::size_t>(size - 1 - below(reach))];
  }
  std::vector<int> some_values(const Scope& scope, int count) {
    std::vector<int> out;
    for (; count > 0; --count) out.push_back(value(scope));
    return out;
  }
  void name_results(Statement& s, Scope& scope, int count) {
    for (; count > 0; --count) {
      s.results.push_back(next_++);
      scope.push_back(s.results.back());
    }
  }

  Statement source(Scope& scope) {
    static const std::vector<std::string> kSources = {"leaf", "leaf", "derived", "data"};
    Statement s;
    s.op = next_ == 0 ? "leaf" : kSources[static_cast<std::size_t>(below(4))];
    s.attribute = static_cast<std::uint32_t>(below(8));
    name_results(s, scope, 1);
    return s;
  }
  Statement operation(Scope& scope) {
    const auto& table = all_ops();
    const Op* op = nullptr;
    do {
      op = &table[static_cast<std::size_t>(below(static_cast<int>(table.size())))];
    } while (op->kind == Kind::Source || (op->kind == Kind::Random && !random_) ||
             (op->name == "gradient_inside" && !inner_gradients_));
    Statement s;
    s.op = op->name;
    s.arguments = some_values(scope, op->arguments);
    s.attribute = static_cast<std::uint32_t>(below(1000));
    name_results(s, scope, op->results);
    return s;
  }
  Statement region(Scope& scope, int depth) { return block(scope, "region", depth); }

  Statement block(Scope& scope, std::string op, int depth) {
    Statement s;
    s.op = std::move(op);
    s.attribute = static_cast<std::uint32_t>(below(1000));
    if (s.is_region()) s.arguments = some_values(scope, below(4));
    Scope inside = scope;
    for (int i = 1 + below(7); i > 0; --i) s.body.push_back(statement(inside, depth));
    s.yields = some_values(inside, 1 + (one_in(3) ? below(3) : 0));
    s.yields[0] = inside.back();
    name_results(s, scope, static_cast<int>(s.yields.size()));
    return s;
  }
  Statement statement(Scope& scope, int depth) {
    static const std::vector<std::string> kBlocks = {"region",      "region",   "region", "no_grad",
                                                     "enable_grad", "autocast", "keep",   "keep"};
    if (depth < kDepth && one_in(6))
      return block(scope, kBlocks[static_cast<std::size_t>(below(8))], depth + 1);
    return operation(scope);
  }

  /// Whatever nothing reads, so that all of the program matters.
  static std::vector<int> outputs(const std::vector<Statement>& body) {
    std::vector<int> made;
    for (const auto& s : body) made.insert(made.end(), s.results.begin(), s.results.end());
    const auto read = free_values(body, {});
    std::set<int> used(read.begin(), read.end());
    for (const auto& s : body) {
      used.insert(s.arguments.begin(), s.arguments.end());
      for (int v : free_values(s.body, s.yields)) used.insert(v);
    }
    std::vector<int> out;
    std::ranges::copy_if(made, std::back_inserter(out), [&](int v) { return !used.contains(v); });
    return out;
  }

  std::mt19937_64 engine_;
  bool random_ = true;
  // The engine runs nodes in the order of numbers that count up in each thread: a gradient that the
  // body takes through a captured graph may save in another order when another thread replays it.
  // And the hook that interrupts, registered after the forward, is met by that gradient in the
  // replay.
  bool inner_gradients_ = true;
  int next_ = 0;
};

[[nodiscard]] inline Program generate(std::uint64_t seed) { return Generator(seed).program(); }

}  // namespace refrain_fuzz
