// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/program.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

namespace refrain_fuzz {

/// Makes a failing program smaller while it still fails: drops statements (what read them reads
/// one of their operands instead), opens blocks, forgets outputs, arguments and settings.
class Shrinker {
 public:
  using Fails = std::function<bool(const Program&)>;
  Shrinker(Program program, Fails fails, int patience = 3000)
      : best_(std::move(program)), fails_(std::move(fails)), patience_(patience) {}

  Program run() {
    while (patience_ > 0 && (settings() || statements() || lists() || attributes())) {
    }
    return best_;
  }

 private:
  bool attempt(const Program& candidate) {
    if (--patience_ < 0 || !fails_(candidate)) return false;
    best_ = candidate;
    return true;
  }
  /// The statement with this number in `for_each_statement`'s order.
  static Statement& nth(Program& program, int wanted) {
    Statement* found = nullptr;
    for_each_statement(program.body, [&](Statement& s) {
      if (wanted-- == 0) found = &s;
    });
    return *found;
  }

  bool settings() {
    bool any = false;
    const auto with = [&](auto change) {
      auto candidate = best_;
      change(candidate.settings);
      if (!(candidate.settings == best_.settings)) any = attempt(candidate) || any;
    };
    with([](Settings& s) { s.nested = false; });
    with([](Settings& s) { s.recorded = false; });
    with([](Settings& s) { s.moved = Moved::Nothing; });
    with([](Settings& s) { s.autocast = false; });
    with([](Settings& s) { s.kept = Kept::Nothing; });
    with([](Settings& s) { s.function_route = false; });
    with([](Settings& s) { s.drive = Drive::Backward; });
    with([](Settings& s) { s.early_stop = true; });
    with([](Settings& s) { s.preserve_rng = true; });
    with([](Settings& s) { s.check = true; });
    with([](Settings& s) { s.values = false; });
    with([](Settings& s) { s.wide = true; });
    return any;
  }

  bool statements() {
    bool any = false;
    for (int i = statement_count(best_) - 1; i >= 0; --i) {
      if (i >= statement_count(best_)) continue;
      auto dropped = best_;
      if (drop(dropped, i) && attempt(dropped)) {
        any = true;
        continue;
      }
      auto opened = best_;
      if (open(opened, i) && attempt(opened)) any = true;
    }
    return any;
  }

  bool lists() {
    bool any = shorten([](Program& p) -> std::vector<int>& { return p.outputs; }, 1);
    for (int i = 0; i < statement_count(best_); ++i) {
      any = shorten([i](Program& p) -> std::vector<int>& { return nth(p, i).arguments; },
                    nth(best_, i).is_block() ? 0 : 99) ||
            any;
      if (nth(best_, i).is_block()) any = yields(i) || any;
    }
    return any;
  }
  template <class List>
  bool shorten(const List& list, std::size_t at_least) {
    bool any = false;
    for (std::size_t i = list(best_).size(); i-- > 0 && list(best_).size() > at_least;) {
      auto candidate = best_;
      list(candidate).erase(list(candidate).begin() + static_cast<std::ptrdiff_t>(i));
      any = attempt(candidate) || any;
    }
    return any;
  }
  bool yields(int index) {
    bool any = false;
    for (std::size_t i = nth(best_, index).yields.size();
         i-- > 0 && nth(best_, index).yields.size() > 1;) {
      auto candidate = best_;
      auto& s = nth(candidate, index);
      const auto at = static_cast<std::ptrdiff_t>(i);
      const int lost = s.results[i];
      s.yields.erase(s.yields.begin() + at);
      s.results.erase(s.results.begin() + at);
      replace(candidate, {{lost, s.results[0]}});
      any = attempt(candidate) || any;
    }
    return any;
  }

  bool attributes() {
    bool any = false;
    for (int i = 0; i < statement_count(best_); ++i) {
      for (std::uint32_t value : {0U, nth(best_, i).attribute / 2}) {
        if (nth(best_, i).attribute == value) continue;
        auto candidate = best_;
        nth(candidate, i).attribute = value;
        any = attempt(candidate) || any;
      }
    }
    return any;
  }

  using Renaming = std::map<int, int>;
  static void replace(Program& program, const Renaming& renaming) {
    const auto rename = [&](std::vector<int>& ids) {
      for (int& id : ids) {
        if (const auto found = renaming.find(id); found != renaming.end()) id = found->second;
      }
    };
    for_each_statement(program.body, [&](Statement& s) { rename(s.arguments), rename(s.yields); });
    rename(program.outputs);
  }
  /// Calls `edit(list, position)` on the list that holds statement `index`.
  template <class Edit>
  static bool edit_at(std::vector<Statement>& body, int& index, const Edit& edit) {
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (index-- == 0) return edit(body, i), true;
      if (edit_at(body[i].body, index, edit)) return true;
    }
    return false;
  }
  static bool drop(Program& program, int index) {
    const Statement gone = nth(program, index);
    int instead = gone.arguments.empty() ? first_value(program) : gone.arguments[0];
    if (gone.is_block() && gone.arguments.empty()) {
      const auto read = free_values(gone.body, gone.yields);
      if (!read.empty()) instead = *read.begin();
    }
    if (std::ranges::find(gone.results, instead) != gone.results.end()) return false;
    edit_at(program.body, index,
            [](auto& body, auto i) { body.erase(body.begin() + static_cast<std::ptrdiff_t>(i)); });
    Renaming renaming;
    for (int result : gone.results) renaming[result] = instead;
    replace(program, renaming);
    return true;
  }
  static bool open(Program& program, int index) {
    const Statement block = nth(program, index);
    if (!block.is_block()) return false;
    edit_at(program.body, index, [&](auto& body, auto i) {
      const auto at = body.erase(body.begin() + static_cast<std::ptrdiff_t>(i));
      body.insert(at, block.body.begin(), block.body.end());
    });
    for (std::size_t i = 0; i < block.results.size(); ++i)
      replace(program, {{block.results[i], block.yields[i]}});
    return true;
  }
  static int first_value(const Program& program) { return program.body.at(0).results.at(0); }

  Program best_;
  Fails fails_;
  int patience_;
};

}  // namespace refrain_fuzz
