// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/memory.hpp>

#include <ATen/Parallel.h>

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  // Poisoned fresh memory: recycled bytes would hide a tensor that nobody filled.
  refrain::count_cpu_memory(refrain::Poison::On);
  at::set_num_threads(1);  // bitwise comparisons need a fixed order of summation
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
