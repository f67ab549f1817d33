// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

namespace support {

/// The usual block: two matmuls, a nonlinearity, dropout, a residual.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(std::int64_t width = 8, double drop = 0.0)
      : fc1(register_module("fc1", torch::nn::Linear(width, 2 * width))),
        fc2(register_module("fc2", torch::nn::Linear(2 * width, width))),
        dropout(register_module("dropout", torch::nn::Dropout(drop))) {}

  torch::Tensor forward(torch::Tensor x) {
    ++runs;
    return x + dropout(fc2(torch::gelu(fc1(x))));
  }

  torch::nn::Linear fc1, fc2;
  torch::nn::Dropout dropout;
  int runs = 0;
};
TORCH_MODULE(Mlp);

/// A frozen layer with a small trainable pair beside it.
struct AdapterImpl : torch::nn::Module {
  explicit AdapterImpl(std::int64_t width = 8)
      : frozen(register_module("frozen", torch::nn::Linear(width, width))),
        down(register_module("down", torch::nn::Linear(width, 2))),
        up(register_module("up", torch::nn::Linear(2, width))) {
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }

  torch::Tensor forward(torch::Tensor x) { return frozen(x) + up(down(x)); }

  torch::nn::Linear frozen, down, up;
};
TORCH_MODULE(Adapter);

}  // namespace support
