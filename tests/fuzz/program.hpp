// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace refrain_fuzz {

/// One line of a random program: `v4, v5 = op(v1, v2) #7`, or a block with a body of its own.
///
/// Blocks are `region` (checkpointed), `keep`, `no_grad`, `enable_grad` and `autocast`. A body sees
/// every value made before it. A region gets `arguments` passed to its function and captures the
/// rest.
struct Statement {
  std::string op;
  std::vector<int> results;
  std::vector<int> arguments;
  std::uint32_t attribute = 0;
  std::vector<Statement> body;
  std::vector<int> yields;
  bool copy_first = false;  // set by `protect_inputs`: an in-place op must not write its operand

  [[nodiscard]] bool is_region() const { return op == "region"; }
  [[nodiscard]] bool is_block() const {
    return is_region() || op == "keep" || op == "no_grad" || op == "enable_grad" ||
           op == "autocast";
  }
};

enum class Drive {
  Backward,     // loss.backward()
  Twice,        // backward with retain_graph, then once more
  Grad,         // grad(loss, leaves)
  Inputs,       // backward(inputs = every second leaf)
  Penalty,      // grad with create_graph, then backward through the squared gradients
  Thread,       // backward() on another thread
  Piecewise,    // one backward for each output, the graph retained in between
  Interrupted,  // a hook throws half way through a retained backward, then a whole backward
  Forget,       // no backward at all
};

/// What regions keep of their operators' results, and of what `keep` blocks mark.
enum class Kept { Nothing, Products, Random, Pointwise, All, NoNames };

/// What regions move to a tier: nothing, what they keep, or, replaying nothing, what autograd
/// saves.
enum class Moved { Nothing, Kept, Saved };

struct Settings {
  Drive drive = Drive::Backward;
  bool wide = true;  // float64, else float32
  bool early_stop = true;
  bool preserve_rng = true;
  bool check = true;
  bool values = false;  // are checked too
  bool function_route = false;
  bool autocast = false;  // the whole forward under bfloat16 autocast
  bool nested = false;    // all of it inside one more region
  bool recorded = false;  // the checkpointed run, in a ledger
  Kept kept = Kept::Nothing;
  Moved moved = Moved::Nothing;
  std::uint32_t seed = 0;  // of the tensors and of the generator

  friend bool operator==(const Settings&, const Settings&) = default;
};

struct Program {
  Settings settings;
  std::vector<Statement> body;
  std::vector<int> outputs;
  // Set by `protect_inputs`: a region captures what was made from an argument and changes the
  // argument in place. Then the argument's graph holds the region, and the region the argument,
  // until a backward pass.
  bool may_hold_itself = false;
};

/// Calls `visit` for each statement, outer ones first.
template <class Statements, class Visit>
void for_each_statement(Statements& statements, const Visit& visit) {
  for (auto& statement : statements) {
    visit(statement);
    for_each_statement(statement.body, visit);
  }
}

[[nodiscard]] inline int statement_count(const Program& program) {
  int count = 0;
  for_each_statement(program.body, [&](const Statement&) { ++count; });
  return count;
}

/// The values a block reads from outside itself, in ascending order.
[[nodiscard]] inline std::set<int> free_values(const std::vector<Statement>& body,
                                               const std::vector<int>& yields) {
  std::set<int> made;
  std::set<int> read;
  const auto note = [&](int value) {
    if (!made.contains(value)) read.insert(value);
  };
  for (const auto& statement : body) {
    for (int value : statement.arguments) note(value);
    for (int value : free_values(statement.body, statement.yields)) note(value);
    made.insert(statement.results.begin(), statement.results.end());
  }
  for (int value : yields) note(value);
  return read;
}

}  // namespace refrain_fuzz
