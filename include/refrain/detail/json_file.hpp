// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

/// Values as JSON files. Not in the umbrella header: it needs nlohmann-json.
namespace refrain {

// nlohmann-json finds these by the type's namespace.
inline void to_json(nlohmann::json& json, Bytes bytes) { json = bytes.count(); }
inline void from_json(const nlohmann::json& json, Bytes& bytes) {
  bytes = Bytes(json.get<std::int64_t>());
}

namespace detail {

inline constexpr int kFileFormat = 1;
inline constexpr int kDeepest = 1000;  // of plans in plans

/// What is wrong with a file, in a `Failure`.
template <class Failure, class Read>
auto read_file(std::string_view what, const std::string& text, const Read& read) {
  try {
    const auto shallow = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
      if (depth > kDeepest) throw Failure(fmt::format("nested deeper than {}.", kDeepest));
      return true;
    };
    const nlohmann::json json = nlohmann::json::parse(text, shallow);
    const int format = json.at("format").get<int>();
    if (format != kFileFormat) {
      throw Failure(fmt::format("this {} is of format {}, known is {}.", what, format, kFileFormat),
                    "likely cause: it was written by another version of Refrain.");
    }
    return read(json);
  } catch (const nlohmann::json::exception& error) {
    throw Failure(fmt::format("this is no {}.", what), error.what());
  }
}

template <class Failure>
[[nodiscard]] std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) throw Failure(fmt::format("cannot read {}.", path));
  return text;
}

template <class Failure>
void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << '\n';
  file.close();
  if (!file) throw Failure(fmt::format("cannot write {}.", path));
}

}  // namespace detail

}  // namespace refrain
