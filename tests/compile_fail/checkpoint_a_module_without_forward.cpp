// expect: refrain::checkpoint needs a module holder with a forward(), a callable
// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/checkpoint.hpp>

#include <torch/nn/pimpl.h>

struct MuteImpl : torch::nn::Module {};
TORCH_MODULE(Mute);

int main() { refrain::checkpoint(Mute()); }
