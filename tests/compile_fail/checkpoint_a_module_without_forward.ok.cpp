// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/checkpoint.hpp>

#include <torch/nn/pimpl.h>

struct SineImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x.sin(); }
};
TORCH_MODULE(Sine);

int main() { (void)refrain::checkpoint(Sine()); }
