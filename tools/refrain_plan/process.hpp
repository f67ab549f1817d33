// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <string>
#include <vector>

namespace refrain_plan {

/// Runs a program without a shell and feeds it a text; true if it ends with 0.
inline bool run_with_input(std::vector<std::string> words, const std::string& text) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const bool started =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[0]);
  std::signal(SIGPIPE, SIG_IGN);  // the child may not read at all
  for (std::size_t written = 0; started && written < text.size();) {
    const auto more = write(ends[1], text.data() + written, text.size() - written);
    if (more <= 0) break;
    written += static_cast<std::size_t>(more);
  }
  close(ends[1]);
  int status = 0;
  return started && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

}  // namespace refrain_plan
