// SPDX-License-Identifier: BSD-3-Clause
//
// A function in, a function out: attention as a lambda that takes tensors, an optional mask and a
// number, gives back a struct, and does not remember the large matrices in between.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <optional>

struct Attended {
  torch::Tensor values;
  torch::Tensor strongest;  // the place each query looks at most: integers, no gradient
};

// One function teaches Refrain where the tensors of a type of yours are.
template <class Visitor>
void visit_tensors(Attended& attended, Visitor&& visit) {
  visit(attended.values);
  visit(attended.strongest);
}

int main() {
  refrain::count_cpu_memory();
  torch::manual_seed(1);

  const auto attend = [](torch::Tensor q, torch::Tensor k, torch::Tensor v,
                         std::optional<torch::Tensor> mask, double drop) {
    auto scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
    if (mask) scores = scores.masked_fill(*mask, -INFINITY);
    const auto weights = torch::softmax(scores, -1);
    return Attended{torch::dropout(weights, drop, true).matmul(v), weights.argmax(-1)};
  };
  const auto quiet = refrain::checkpoint(attend);

  const auto make = [] { return torch::randn({8, 256, 32}, torch::requires_grad()); };
  const auto q = make();
  const auto k = make();
  const auto v = make();
  const auto mask = torch::ones({256, 256}, torch::kBool).triu(1);

  const auto step = [&](const auto& function) {
    torch::manual_seed(2);
    const auto before = refrain::memory().live;
    const auto out = function(q, k, v, mask, 0.1);
    const auto kept = refrain::memory().live - before;
    auto results = torch::autograd::grad({out.values.sum()}, {q, k, v});
    results.insert(results.end(), {out.values.detach(), out.strongest});
    return std::pair(kept, results);
  };
  const auto [plain_kept, plain] = step(attend);
  const auto [quiet_kept, same] = step(quiet);

  fmt::print("kept for backward: {} plain, {} checkpointed\n", plain_kept, quiet_kept);
  bool equal = true;
  for (std::size_t i = 0; i < plain.size(); ++i) equal = equal && plain[i].equal(same[i]);
  fmt::print("values, places and the gradients of q, k, v: {}\n",
             equal ? "equal bit for bit" : "DIFFER");
  return equal && quiet_kept * 4 < plain_kept ? EXIT_SUCCESS : EXIT_FAILURE;
}
