// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/policy.hpp>

#include <string>

struct Mine {
  refrain::Segmentation cut(const refrain::Chain& chain) const {
    return refrain::policy::none().cut(chain);
  }
  std::string describe() const { return "mine()"; }
};

int main() {
  const refrain::policy::AnyPolicy policy = Mine();
  return policy.cut({}).empty() ? 0 : 1;
}
