// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace train_gpt {

/// A line that is written over while work goes on, and stays when it is done. Where nobody watches
/// (a file, a pipe) only lines that stay are written.
class Progress {
 public:
  void show(const std::string& line) const {
    if (!watched_) return;
    fmt::print("\r\x1b[2K{}", line);
    std::fflush(stdout);
  }

  void keep(const std::string& line) const {
    fmt::print("{}{}\n", watched_ ? "\r\x1b[2K" : "", line);
    std::fflush(stdout);
  }

 private:
  bool watched_ = isatty(STDOUT_FILENO) != 0;
};

}  // namespace train_gpt
