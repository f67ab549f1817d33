// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/program.hpp"

#include <array>
#include <cctype>
#include <stdexcept>
#include <string>
#include <string_view>

namespace refrain_fuzz {

inline constexpr std::array<std::string_view, 9> kDriveNames = {
    "backward", "twice",     "grad",        "inputs", "penalty",
    "thread",   "piecewise", "interrupted", "forget"};

inline constexpr std::array<std::string_view, 6> kKeptNames = {
    "", "keep_products", "keep_random", "keep_pointwise", "keep_all", "keep_no_names"};

namespace text {

inline std::string values(const std::vector<int>& ids) {
  std::string out;
  for (int id : ids) out += (out.empty() ? "v" : ", v") + std::to_string(id);
  return out;
}

inline void write(std::string& out, const std::vector<Statement>& body, int depth) {
  const std::string indent(static_cast<std::size_t>(2 * depth), ' ');
  for (const auto& s : body) {
    out += indent + values(s.results) + " = " + s.op + "(" + values(s.arguments) + ")";
    if (s.attribute != 0) out += " #" + std::to_string(s.attribute);
    if (s.is_block()) {
      out += " {\n";
      write(out, s.body, depth + 1);
      out += indent + "  yield " + values(s.yields) + "\n" + indent + "}";
    }
    out += "\n";
  }
}

/// Reads what `write` writes; line ends and `;` are white space.
class Reader {
 public:
  explicit Reader(std::string_view source) : source_(source) {}

  std::string_view word() {
    skip();
    const auto begin = at_;
    while (at_ < source_.size() && (std::isalnum(byte()) != 0 || byte() == '_')) ++at_;
    if (begin == at_) fail("a word");
    return source_.substr(begin, at_ - begin);
  }
  bool take(char wanted) {
    skip();
    if (at_ >= source_.size() || source_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) fail(std::string(1, wanted));
  }
  bool peek_word(std::string_view wanted) {
    skip();
    return source_.substr(at_, wanted.size()) == wanted;
  }
  std::uint32_t number() { return static_cast<std::uint32_t>(std::stoul(std::string(word()))); }

  std::vector<int> ids() {
    std::vector<int> out;
    skip();
    if (at_ >= source_.size() || byte() != 'v') return out;
    do {
      out.push_back(std::stoi(std::string(word().substr(1))));
    } while (take(','));
    return out;
  }

  std::vector<Statement> body(std::string_view last) {
    std::vector<Statement> out;
    while (!peek_word(last)) out.push_back(statement());
    word();
    return out;
  }

 private:
  Statement statement() {
    Statement s;
    s.results = ids();
    expect('=');
    s.op = word();
    expect('(');
    s.arguments = ids();
    expect(')');
    if (take('#')) s.attribute = number();
    if (take('{')) {
      s.body = body("yield");
      s.yields = ids();
      expect('}');
    }
    return s;
  }
  unsigned char byte() const { return static_cast<unsigned char>(source_[at_]); }
  void skip() {
    while (at_ < source_.size() && (std::isspace(byte()) != 0 || byte() == ';')) ++at_;
  }
  [[noreturn]] void fail(const std::string& wanted) const {
    throw std::invalid_argument("program text: expected " + wanted + " at \"" +
                                std::string(source_.substr(at_, 20)) + "\"");
  }

  std::string_view source_;
  std::size_t at_ = 0;
};

}  // namespace text

/// The program as text: settings on the first line, then a statement a line.
[[nodiscard]] inline std::string to_text(const Program& program) {
  const auto& s = program.settings;
  std::string out(kDriveNames.at(static_cast<std::size_t>(s.drive)));
  out += s.wide ? " float64" : " float32";
  if (!s.early_stop) out += " no_early_stop";
  if (!s.preserve_rng) out += " ignore_rng";
  if (!s.check) out += " no_check";
  if (s.values) out += " values";
  if (s.function_route) out += " function_route";
  if (s.autocast) out += " autocast";
  if (s.nested) out += " nested";
  if (s.recorded) out += " recorded";
  if (s.moved == Moved::Kept) out += " moves_kept";
  if (s.moved == Moved::Saved) out += " moves_saved";
  if (s.kept != Kept::Nothing) out += " ";
  out += kKeptNames.at(static_cast<std::size_t>(s.kept));
  out += " seed " + std::to_string(s.seed) + " begin\n";
  text::write(out, program.body, 1);
  return out + "return " + text::values(program.outputs) + "\n";
}

/// The program a text describes. Throws `std::invalid_argument` where it cannot be read.
[[nodiscard]] inline Program from_text(std::string_view source) {
  text::Reader reader(source);
  Program program;
  auto& s = program.settings;
  for (auto word = reader.word(); word != "begin"; word = reader.word()) {
    bool known = true;
    if (word == "seed")
      s.seed = reader.number();
    else if (word == "float64" || word == "float32")
      s.wide = word == "float64";
    else if (word == "no_early_stop")
      s.early_stop = false;
    else if (word == "ignore_rng")
      s.preserve_rng = false;
    else if (word == "no_check")
      s.check = false;
    else if (word == "values")
      s.values = true;
    else if (word == "function_route")
      s.function_route = true;
    else if (word == "autocast")
      s.autocast = true;
    else if (word == "nested")
      s.nested = true;
    else if (word == "recorded")
      s.recorded = true;
    else if (word == "moves_kept")
      s.moved = Moved::Kept;
    else if (word == "moves_saved")
      s.moved = Moved::Saved;
    else
      known = false;
    for (std::size_t i = 0; i < kDriveNames.size(); ++i) {
      if (kDriveNames[i] == word) s.drive = static_cast<Drive>(i), known = true;
    }
    for (std::size_t i = 1; i < kKeptNames.size(); ++i) {
      if (kKeptNames[i] == word) s.kept = static_cast<Kept>(i), known = true;
    }
    if (!known) throw std::invalid_argument("program text: unknown word " + std::string(word));
  }
  program.body = reader.body("return");
  program.outputs = reader.ids();
  return program;
}

}  // namespace refrain_fuzz
