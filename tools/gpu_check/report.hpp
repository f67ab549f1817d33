// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "outcome.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpu_check {

/// All that a run found, as JSON and as a Markdown table.
class Report {
 public:
  struct Row {
    std::string group;
    std::string name;
    Outcome outcome;
    double seconds = 0;
  };

  /// A version, a device, a date: what a result is worth nothing without.
  void fact(std::string name, std::string value) {
    facts_.emplace_back(std::move(name), std::move(value));
  }
  void add(Row row) { rows_.push_back(std::move(row)); }
  /// No check could run.
  void nothing_checked(std::string why) { why_nothing_ = std::move(why); }

  [[nodiscard]] std::size_t count(Outcome::Kind kind) const {
    return static_cast<std::size_t>(std::count_if(
        rows_.begin(), rows_.end(), [kind](const Row& row) { return row.outcome.kind == kind; }));
  }
  [[nodiscard]] bool anything_checked() const {
    return count(Outcome::Kind::Skipped) < rows_.size();
  }

  [[nodiscard]] std::string summary() const {
    if (!why_nothing_.empty()) return why_nothing_ + ": nothing was checked";
    return fmt::format("{} passed, {} missed their goal, {} failed, {} skipped",
                       count(Outcome::Kind::Passed), count(Outcome::Kind::Missed),
                       count(Outcome::Kind::Failed), count(Outcome::Kind::Skipped));
  }

  [[nodiscard]] static std::string word(Outcome::Kind kind) {
    switch (kind) {
      case Outcome::Kind::Passed:
        return "passed";
      case Outcome::Kind::Missed:
        return "goal missed";
      case Outcome::Kind::Failed:
        return "FAILED";
      case Outcome::Kind::Skipped:
        return "skipped";
    }
    return "";
  }
  [[nodiscard]] static std::string number(const Outcome& outcome) {
    if (!outcome.measured) return "";
    return fmt::format("{:.4g} {}", outcome.measured->value, outcome.measured->unit);
  }
  [[nodiscard]] static std::string goal(const Outcome& outcome) {
    if (!outcome.measured) return "";
    const bool most = outcome.measured->goal == Measured::Goal::AtMost;
    return fmt::format("{} {:g} {}", most ? "≤" : "≥", outcome.measured->bound,
                       outcome.measured->unit);
  }

  /// Writes gpu_check.json and gpu_check.md.
  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    write_file(folder / "gpu_check.json", json().dump(2));
    write_file(folder / "gpu_check.md", markdown());
  }

 private:
  static void write_file(const std::filesystem::path& path, const std::string& text) {
    std::ofstream file(path);
    file << text << "\n";
    file.close();
    if (!file) throw std::runtime_error(fmt::format("cannot write {}", path.string()));
  }

  [[nodiscard]] nlohmann::ordered_json json() const {
    nlohmann::ordered_json all = {{"summary", summary()}, {"anything_checked", anything_checked()}};
    if (!why_nothing_.empty()) all["why_nothing"] = why_nothing_;
    for (const auto& [name, value] : facts_) all["facts"][name] = value;
    all["checks"] = nlohmann::ordered_json::array();
    for (const Row& row : rows_) all["checks"].push_back(json_of(row));
    return all;
  }

  static nlohmann::ordered_json json_of(const Row& row) {
    nlohmann::ordered_json one = {{"group", row.group},
                                  {"name", row.name},
                                  {"outcome", word(row.outcome.kind)},
                                  {"seconds", row.seconds}};
    if (!row.outcome.text.empty()) one["text"] = row.outcome.text;
    if (const auto& number = row.outcome.measured) {
      one["value"] = number->value;
      one["unit"] = number->unit;
      one["goal"] = goal(row.outcome);
    }
    return one;
  }

  [[nodiscard]] std::string markdown() const {
    std::string text = fmt::format("# GPU check\n\n{}.\n\n| | |\n| --- | --- |\n", summary());
    for (const auto& [name, value] : facts_)
      text += fmt::format("| {} | {} |\n", name, cell(value));
    if (rows_.empty()) return text;
    text +=
        "\n| group | check | outcome | measured | goal | |\n| --- | --- | --- | --- | --- | --- "
        "|\n";
    for (const Row& row : rows_) {
      text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.group, row.name,
                          word(row.outcome.kind), number(row.outcome), goal(row.outcome),
                          cell(row.outcome.text));
    }
    return text;
  }

  /// A cell is one line.
  static std::string cell(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::replace(text.begin(), text.end(), '|', '/');
    return text;
  }

  std::vector<std::pair<std::string, std::string>> facts_;
  std::vector<Row> rows_;
  std::string why_nothing_;
};

}  // namespace gpu_check
