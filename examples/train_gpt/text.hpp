// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "options.hpp"

#include <ATen/ATen.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace train_gpt {

/// A batch of sequences, and for each place in them the character that comes next.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

/// A text as numbers: each character that occurs has one.
class Text {
 public:
  explicit Text(const std::string& characters) : codes_(characters.begin(), characters.end()) {
    std::array<bool, 256> occurs{};
    for (const auto code : codes_) occurs.at(code) = true;
    std::array<std::uint8_t, 256> numbers{};
    for (std::size_t code = 0; code < occurs.size(); ++code) {
      if (occurs.at(code)) numbers.at(code) = static_cast<std::uint8_t>(vocabulary_++);
    }
    for (auto& code : codes_) code = numbers.at(code);
  }

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t size() const { return static_cast<std::int64_t>(codes_.size()); }

  /// The `index`-th batch of the order that `seed` gives; the same whenever it is asked for, so
  /// that a resumed run reads on where the first one stopped.
  Batch batch(std::int64_t sequences, std::int64_t length, std::uint64_t seed,
              std::int64_t index) const {
    std::seed_seq mixed{seed, seed >> 32U, static_cast<std::uint64_t>(index)};
    std::mt19937_64 random(mixed);
    const auto both = at::empty({sequences, length + 1}, at::kLong);
    auto* to = both.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < sequences; ++i) {
      const auto from = random() % static_cast<std::uint64_t>(size() - length);
      to = std::copy_n(codes_.begin() + static_cast<std::ptrdiff_t>(from), length + 1, to);
    }
    return {both.slice(1, 0, length), both.slice(1, 1, length + 1)};
  }

 private:
  std::vector<std::uint8_t> codes_;
  std::int64_t vocabulary_ = 0;
};

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw BadOption(fmt::format("--data {}: cannot be read.", path.string()));
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The headers of LibTorch's C++ API, one after the other: about a million characters of C++ and
/// prose. The build tells its include folders in TRAIN_GPT_INCLUDE_DIRS, separated by bars.
inline std::string libtorch_headers() {
  namespace fs = std::filesystem;
  const std::string folders = TRAIN_GPT_INCLUDE_DIRS;
  std::vector<fs::path> headers;
  for (std::size_t begin = 0; begin < folders.size();) {
    const auto end = std::min(folders.find('|', begin), folders.size());
    const auto root = fs::path(folders.substr(begin, end - begin)) / "torch/csrc/api/include/torch";
    begin = end + 1;
    if (!fs::is_directory(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (entry.path().extension() == ".h") headers.push_back(entry.path());
    }
  }
  if (headers.empty()) {
    throw BadOption(
        fmt::format("there is no text to read: LibTorch's headers are no longer in {}, "
                    "so name a text file with --data.",
                    folders));
  }
  std::sort(headers.begin(), headers.end());
  std::string all;
  for (const auto& header : headers) all += contents(header);
  return all;
}

inline Text text_for(const Options& options) {
  Text text(options.data.empty() ? libtorch_headers() : contents(options.data));
  if (text.size() <= options.seq) {
    throw BadOption(
        fmt::format("the text has {} characters, too few for --seq {}.", text.size(), options.seq));
  }
  return text;
}

}  // namespace train_gpt
