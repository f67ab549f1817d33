// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <malloc.h>

#include <cstdlib>

namespace bench {

/// Lets malloc keep what it once had, here and in the programs started from here. glibc gives large
/// blocks back to the system, so that a step pays for fresh pages anew, the more memory it takes
/// the more; the allocators of accelerators, jemalloc and tcmalloc do not.
inline void keep_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 25);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 1 << 27);
  setenv("MALLOC_MMAP_THRESHOLD_", "33554432", /*replace=*/1);
  setenv("MALLOC_TRIM_THRESHOLD_", "1073741824", /*replace=*/1);
  setenv("MALLOC_TOP_PAD_", "134217728", /*replace=*/1);
}

}  // namespace bench
