// expect: refrain: a segment policy is copyable and has
// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/checkpoint.hpp>

#include <torch/nn/modules/container/sequential.h>

struct Mine {
  refrain::Segmentation cut(const refrain::Chain& chain) const {
    return refrain::policy::none().cut(chain);
  }
};

int main() { (void)refrain::checkpoint(torch::nn::Sequential(), Mine()); }
