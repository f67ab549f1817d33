// expect: bytes_literal_is_too_large
// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/bytes.hpp>

int main() {
  using namespace refrain::literals;
  return 8589934592_GiB > 0_B ? 0 : 1;
}
