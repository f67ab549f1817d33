// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/bytes.hpp>

int main() {
  using namespace refrain::literals;
  const refrain::Bytes budget = 6_B;
  return budget.count() == 6 ? 0 : 1;
}
