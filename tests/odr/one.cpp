// SPDX-License-Identifier: BSD-3-Clause
#include "odr/odr.hpp"
#include <refrain/refrain.hpp>

#include <torch/nn/modules/linear.h>

Sight sight_of_one() {
  return {&typeid(refrain::Checkpoint<torch::nn::Linear>), &refrain::kVersion, &refrain::replaying};
}
