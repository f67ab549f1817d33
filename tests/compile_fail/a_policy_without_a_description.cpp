// expect: refrain: a segment policy is copyable and has
// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/policy.hpp>

struct Mine {
  refrain::Segmentation cut(const refrain::Chain& chain) const {
    return refrain::policy::none().cut(chain);
  }
};

int main() {
  const refrain::policy::AnyPolicy policy = Mine();
  return policy.cut({}).empty() ? 0 : 1;
}
