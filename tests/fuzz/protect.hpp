// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/table.hpp"
#include "fuzz/program.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace refrain_fuzz {

/// Marks the in-place statements that would write into something a region still has to read.
///
/// Writing into what a region captured, or into its arguments after the call, is an error by
/// contract, and not what random programs are for. Decided from the text alone, so that first run
/// and replay cannot decide differently.
class InputProtection {
 public:
  void visit(std::vector<Statement>& body) {
    for (auto& s : body) {
      if (s.is_block())
        block(s);
      else
        operation(s);
    }
  }
  void guard(int value) { merge(guarded_, roots(value)); }
  [[nodiscard]] bool may_hold_itself() const { return may_hold_itself_; }

 private:
  using Roots = std::set<int>;
  static constexpr int kParameter = -1;

  void block(Statement& s) {
    const bool keeps = s.op == "keep";  // may write nothing that the region made
    if (s.is_region() || keeps) guard_captured(s);
    const int before = capturing_;
    if (s.is_region() && captures_a_result(s)) ++capturing_;
    visit(s.body);
    capturing_ = before;
    if (s.is_region())
      for (int value : s.arguments) guard(value);
    for (std::size_t i = 0; i < s.results.size(); ++i) {
      roots_[s.results[i]] = roots(s.yields[i]);
      if (keeps) guard(s.results[i]);
    }
  }
  /// A region may write to an argument that shares memory with nothing else it reads.
  void guard_captured(const Statement& s) {
    std::map<int, int> readers;
    for (int value : s.arguments) {
      for (int root : roots(value)) ++readers[root];
    }
    const auto passed = [&](int value) {
      return std::ranges::find(s.arguments, value) != s.arguments.end();
    };
    for (int value : free_values(s.body, s.yields)) {
      if (!passed(value)) guard(value);
    }
    for (auto [root, count] : readers) {
      if (count > 1) guarded_.insert(root);
    }
  }
  [[nodiscard]] bool captures_a_result(const Statement& s) const {
    return std::ranges::any_of(free_values(s.body, s.yields), [&](int value) {
      return std::ranges::find(s.arguments, value) == s.arguments.end() &&
             !sources_.contains(value);
    });
  }
  void operation(Statement& s) {
    const auto& op = find_op(s.op);
    Roots shared;
    if (op.kind == Kind::InPlace) {
      const auto written = roots(s.arguments.at(0));
      s.copy_first = std::ranges::any_of(written, [&](int r) { return guarded_.contains(r); });
      if (!s.copy_first) shared = written;
      may_hold_itself_ = may_hold_itself_ || (!s.copy_first && capturing_ > 0);
    } else if (op.kind == Kind::Alias) {
      for (int value : s.arguments) merge(shared, roots(value));
      if (s.arguments.empty()) shared.insert(kParameter);
    }
    for (int result : s.results) roots_[result] = shared.empty() ? Roots{result} : shared;
    if (op.kind != Kind::Source) return;
    guard(s.results.at(0));
    sources_.insert(s.results.at(0));
  }
  Roots roots(int value) const {
    const auto found = roots_.find(value);
    return found == roots_.end() ? Roots{value} : found->second;
  }
  static void merge(Roots& into, const Roots& from) { into.insert(from.begin(), from.end()); }

  std::map<int, Roots> roots_;
  Roots guarded_{kParameter};
  Roots sources_;
  int capturing_ = 0;  // regions around this statement that capture a result
  bool may_hold_itself_ = false;
};

inline void protect_inputs(Program& program) {
  InputProtection protection;
  if (program.settings.nested) {
    for (const auto& s : program.body) {
      if (s.is_block() || find_op(s.op).kind != Kind::Source) continue;
      for (int value : s.results) protection.guard(value);
    }
  }
  protection.visit(program.body);
  program.may_hold_itself = protection.may_hold_itself();
}

}  // namespace refrain_fuzz
