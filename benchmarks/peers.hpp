// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

namespace bench {

/// What `peers/<script>` measures of PyTorch's own checkpointing, or null where no Python with
/// torch was asked for when this was built (`./run bench --peers`).
inline nlohmann::json peer(const std::string& script, const std::string& arguments = "") {
  const std::string python = REFRAIN_PEERS_PYTHON;
  if (python.empty()) return {};
  const auto command =
      fmt::format("\"{}\" \"{}/peers/{}\" {}", python, REFRAIN_BENCHMARKS, script, arguments);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string said;
  std::array<char, 4096> buffer{};
  while (pipe != nullptr &&
         fgets(buffer.data(), static_cast<int>(buffer.size()), pipe.get()) != nullptr) {
    said += buffer.data();
  }
  auto answer = nlohmann::json::parse(said, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded()) {
    fmt::print(stderr, "{} gave no answer that can be read: {}\n", script, said);
    return {};
  }
  return answer;
}

}  // namespace bench
