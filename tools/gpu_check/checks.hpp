// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cuda_only.hpp"
#include "outcome.hpp"

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gpu_check {

/// Where checks run.
struct Where {
  c10::Device device;
  std::filesystem::path out;       ///< For files that a check leaves.
  const CudaOnly* cuda = nullptr;  ///< Null in a dry run on the CPU.

  [[nodiscard]] bool on_gpu() const { return !device.is_cpu(); }
  /// Sizes that tell something on a GPU are far too large for a dry run.
  template <class T>
  [[nodiscard]] T size(T on_a_gpu, T in_a_dry_run) const {
    return on_gpu() ? on_a_gpu : in_a_dry_run;
  }
};

struct Check {
  std::string group;
  std::string name;
  std::function<Outcome(const Where&)> run;
};

class Checks {
 public:
  /// Those added next belong to it.
  void group(std::string name) { group_ = std::move(name); }
  /// What `run` throws is its failure.
  void check(std::string name, std::function<Outcome(const Where&)> run) {
    all_.push_back({group_, std::move(name), std::move(run)});
  }
  [[nodiscard]] const std::vector<Check>& all() const { return all_; }

 private:
  std::string group_;
  std::vector<Check> all_;
};

// One file each. What is right comes before what is fast.
void add_contract(Checks& checks);
void add_random_and_autocast(Checks& checks);
void add_kernels(Checks& checks);
void add_threads_and_streams(Checks& checks);
void add_offload(Checks& checks);
void add_memory(Checks& checks);
void add_speed(Checks& checks);
void add_graph_capture(Checks& checks);

inline Checks all_checks() {
  Checks checks;
  add_contract(checks);
  add_random_and_autocast(checks);
  add_kernels(checks);
  add_threads_and_streams(checks);
  add_offload(checks);
  add_memory(checks);
  add_speed(checks);
  add_graph_capture(checks);  // last: a capture that went wrong could spoil what follows
  return checks;
}

}  // namespace gpu_check
