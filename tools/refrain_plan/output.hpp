// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain_plan {

/// What the user must mend; its text is the one sentence that is said.
class BadInput : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Format { Table, Json, Csv };

/// Rows under named columns, printed in any format.
class Rows {
 public:
  explicit Rows(std::vector<std::string> columns) : columns_(std::move(columns)) {}

  /// A value for each column: what a table shows, and what JSON and CSV carry.
  struct Value {
    std::string shown;
    nlohmann::json carried;
    Value(std::string text) : shown(text), carried(std::move(text)) {}
    Value(const char* text) : Value(std::string(text)) {}
    Value(std::string text, nlohmann::json value)
        : shown(std::move(text)), carried(std::move(value)) {}
  };
  void add(std::vector<Value> row) { rows_.push_back(std::move(row)); }

  [[nodiscard]] std::string table() const {
    std::vector<std::size_t> widths;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      std::size_t width = columns_[i].size();
      for (const auto& row : rows_) width = std::max(width, row[i].shown.size());
      widths.push_back(width);
    }
    std::string text;
    const auto line = [&](const auto& cell) {
      for (std::size_t i = 0; i < columns_.size(); ++i)
        text += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", cell(i), widths[i]);
      text += '\n';
    };
    line([&](std::size_t i) { return columns_[i]; });
    for (const auto& row : rows_) line([&](std::size_t i) { return row[i].shown; });
    return text;
  }

  [[nodiscard]] nlohmann::json json() const {
    auto list = nlohmann::json::array();
    for (const auto& row : rows_) {
      nlohmann::json object;
      for (std::size_t i = 0; i < columns_.size(); ++i) object[columns_[i]] = row[i].carried;
      list.push_back(std::move(object));
    }
    return list;
  }

  [[nodiscard]] std::string csv() const {
    std::string text = fmt::format("{}\n", fmt::join(columns_, ","));
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string cell =
            row[i].carried.is_string() ? row[i].carried.get<std::string>() : row[i].carried.dump();
        text += (i == 0 ? "" : ",") + quoted(cell);
      }
      text += '\n';
    }
    return text;
  }

  [[nodiscard]] std::string in(Format format) const {
    if (format == Format::Json) return json().dump(2) + '\n';
    return format == Format::Csv ? csv() : table();
  }

 private:
  static std::string quoted(const std::string& cell) {
    if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
    std::string text = "\"";
    for (const char letter : cell) text += letter == '"' ? "\"\"" : std::string(1, letter);
    return text + '"';
  }

  std::vector<std::string> columns_;
  std::vector<std::vector<Value>> rows_;
};

}  // namespace refrain_plan
