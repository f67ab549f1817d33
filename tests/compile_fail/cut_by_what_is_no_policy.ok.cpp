// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/checkpoint.hpp>

#include <torch/nn/modules/container/sequential.h>

#include <string>

struct Mine {
  refrain::Segmentation cut(const refrain::Chain& chain) const {
    return refrain::policy::none().cut(chain);
  }
  std::string describe() const { return "mine()"; }
};

int main() { (void)refrain::checkpoint(torch::nn::Sequential(), Mine()); }
