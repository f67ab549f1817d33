// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <ATen/Context.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <fmt/format.h>

#include <cstddef>
#include <fstream>
#include <ios>
#include <optional>
#include <string>

/// Needs a LibTorch with CUDA, and its libraries linked. Not in the umbrella header.
namespace refrain::cuda {

/// Writes down what CUDA's caching allocator does while it lives, for PyTorch's memory visualiser
/// (pytorch.org/memory_viz).
///
///     refrain::cuda::MemoryHistory history;
///     step();
///     history.save("step.pickle");
///
/// One at a time in a process. Memory and time: those of LibTorch's own recording, with a stack
/// trace for each allocation. Throws `Error` where there is no CUDA device.
class MemoryHistory {
 public:
  /// Keeps the last `events`.
  explicit MemoryHistory(std::size_t events = 100'000) {
    if (!at::globalContext().hasCUDA()) {
      throw Error("MemoryHistory: this process has no CUDA device to look at.",
                  "on the CPU refrain::record() gives the live bytes over time.");
    }
    torch::cuda::_record_memory_history("all", "all", "all", events, /*clearHistory=*/true);
  }
  MemoryHistory(const MemoryHistory&) = delete;
  MemoryHistory& operator=(const MemoryHistory&) = delete;
  ~MemoryHistory() { torch::cuda::_record_memory_history(std::nullopt); }

  /// Writes a pickled snapshot of the memory as it is now and of what happened until now. Throws
  /// `Error` if the file cannot be written.
  void save(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    file << torch::cuda::_memory_snapshot_pickled();
    file.close();
    if (!file) throw Error(fmt::format("MemoryHistory: cannot write {}.", path));
  }
};

}  // namespace refrain::cuda
