// SPDX-License-Identifier: BSD-3-Clause
// Two translation units include everything; linking them finds a function that lacks `inline`, and
// running them finds a variable or type of which there are two.
#include "odr/odr.hpp"

int main() {
  const auto one = sight_of_one();
  const auto two = sight_of_two();
  const bool same = *one.block == *two.block && one.version == two.version &&
                    one.is_replaying == two.is_replaying;
  return same && !one.is_replaying() ? 0 : 1;
}
