// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace refrain::detail {

/// Tells how far something is: to who asked, or else on the terminal once it takes long.
class TerminalProgress {
 public:
  using Tell = std::function<void(std::int64_t done, std::int64_t all)>;

  TerminalProgress(std::string what, Tell tell) : what_(std::move(what)), tell_(std::move(tell)) {}

  void done(std::int64_t done, std::int64_t all) const {
    if (tell_) return tell_(done, all);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    if (took.count() < kLong || !is_terminal()) return;
    const std::string line =
        fmt::format("\r{}: {} of {}{}", what_, done, all, done == all ? "\n" : "");
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

 private:
  static bool is_terminal() {
#if __has_include(<unistd.h>)
    return isatty(STDERR_FILENO) == 1;
#else
    return false;
#endif
  }

  static constexpr double kLong = 2;  // seconds

  std::string what_;
  Tell tell_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace refrain::detail
