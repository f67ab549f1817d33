// SPDX-License-Identifier: BSD-3-Clause
//
// Wraps the blocks of a network. Shows what changes, the memory that waits for backward, and what
// does not: parameter names, gradients, the random stream.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  torch::Tensor forward(torch::Tensor x) {
    return x + torch::dropout(down(torch::gelu(up(x))), /*p=*/0.1, is_training());
  }

  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return second(first(x)); }

  // The only two lines that know of Refrain. Without it: `Block first = register_module("first",
  // Block(128));`
  refrain::Checkpoint<Block> first = register_module("first", refrain::checkpoint(Block(128)));
  refrain::Checkpoint<Block> second = register_module("second", refrain::checkpoint<Block>(128));
};
TORCH_MODULE(Net);

struct Outcome {
  refrain::Bytes kept;
  std::vector<torch::Tensor> gradients;
  torch::Tensor next_random;
};

Outcome one_step(Net& net, const torch::Tensor& x) {
  torch::manual_seed(7);
  net->zero_grad();
  const auto before = refrain::memory().live;
  const auto loss = net(x).square().mean();
  Outcome outcome{refrain::memory().live - before, {}, {}};
  loss.backward();
  for (const auto& parameter : net->parameters()) outcome.gradients.push_back(parameter.grad());
  outcome.next_random = torch::rand({4});
  return outcome;
}

int main() {
  refrain::count_cpu_memory();
  Net net;
  const auto x = torch::randn({256, 128});

  const auto quiet = one_step(net, x);
  refrain::disable(net);
  const auto plain = one_step(net, x);

  bool equal = quiet.next_random.equal(plain.next_random);
  const auto parameters = net->named_parameters();
  fmt::print("waiting for backward: {} plain, {} checkpointed\n\n", plain.kept, quiet.kept);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool same = plain.gradients[i].equal(quiet.gradients[i]);
    fmt::print("{:<20} gradient {}\n", parameters[i].key(), same ? "equal bit for bit" : "DIFFERS");
    equal = equal && same;
  }
  return equal && quiet.kept * 3 < plain.kept ? EXIT_SUCCESS : EXIT_FAILURE;
}
