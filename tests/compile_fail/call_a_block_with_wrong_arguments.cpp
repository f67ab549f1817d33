// expect: refrain: the checkpointed module's forward() cannot be called with these arguments
// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/checkpoint.hpp>

#include <torch/nn/pimpl.h>

struct ScaleImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x, double by = 2.0) { return x * by; }
};
TORCH_MODULE(Scale);

int main() {
  auto quiet = refrain::checkpoint(Scale());
  quiet(at::Tensor(), "twice");
}
