// SPDX-License-Identifier: BSD-3-Clause
//
// A small mixture of experts in a region. Its router picks the two best experts of each token;
// where scores tie, which ones win is the kernel's whim, and a replay that picked others would give
// wrong gradients in silence. `refrain::keep` runs the choice once and hands it to the replay.
// Prints who was chosen how often, and checks the gradients against the plain run's.
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace nn = torch::nn;

constexpr std::int64_t kExperts = 4;
constexpr std::int64_t kBest = 2;

int choices = 0;        // how often a router has chosen
std::mt19937 whim(17);  // of a kernel: no replay sets it back

/// The two best experts of each token, ties broken at random.
torch::Tensor choose(const torch::Tensor& scores) {
  ++choices;
  std::vector<float> noise(static_cast<std::size_t>(scores.numel()));
  for (float& number : noise) number = std::uniform_real_distribution<float>(0, 1e-3F)(whim);
  return std::get<1>((scores + torch::tensor(noise).view_as(scores)).topk(kBest, 1));
}

struct MixtureImpl : nn::Module {
  MixtureImpl() {
    for (std::int64_t i = 0; i < kExperts; ++i)
      experts->push_back(nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16)));
    const torch::NoGradGuard no_grad;
    router->weight.zero_();  // at the start of a training all scores tie
    router->bias.zero_();
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto scores = torch::softmax(router(x), 1);
    const auto chosen = refrain::keep("router", [&] { return choose(scores.detach()); });
    // Counted once a step, not again in the replay.
    refrain::once([&] { load += torch::one_hot(chosen.flatten(), kExperts).sum(0); });
    auto y = torch::zeros_like(x);
    for (std::int64_t i = 0; i < kExperts; ++i) {
      const auto tokens = (chosen == i).any(1).nonzero().squeeze(1);
      const auto weight = scores.index_select(0, tokens).select(1, i).unsqueeze(1);
      const auto out = experts[static_cast<std::size_t>(i)]->as<nn::Sequential>()->forward(
          x.index_select(0, tokens));
      y = y.index_add(0, tokens, weight * out);
    }
    return x + y;
  }

  nn::Linear router = register_module("router", nn::Linear(16, kExperts));
  nn::ModuleList experts = register_module("experts", nn::ModuleList());
  torch::Tensor load = register_buffer("load", torch::zeros({kExperts}, torch::kLong));
};
TORCH_MODULE(Mixture);

std::vector<torch::Tensor> gradients(Mixture& model, const auto& call, const torch::Tensor& x) {
  whim.seed(17);
  model->zero_grad();
  torch::Tensor y = call(x);
  y.sin().sum().backward();
  std::vector<torch::Tensor> all;
  for (const auto& parameter : model->parameters()) all.push_back(parameter.grad().clone());
  return all;
}

int main() {
  Mixture model;
  const auto x = torch::randn({64, 16});
  auto quiet = refrain::checkpoint(model);

  const auto plain = gradients(model, [&](const auto& t) { return model(t); }, x);
  model->load.zero_();
  choices = 0;
  const auto kept = gradients(model, [&](const auto& t) { return quiet(t); }, x);

  bool equal = choices == 1;
  for (std::size_t i = 0; i < plain.size(); ++i) equal = equal && torch::equal(plain[i], kept[i]);
  fmt::print("the router chose {} time; experts took", choices);
  for (std::int64_t i = 0; i < kExperts; ++i)
    fmt::print(" {}", model->load[i].item<std::int64_t>());
  fmt::print(" of {} tokens; gradients are {}\n", x.size(0) * kBest,
             equal ? "equal, bit for bit" : "NOT equal");
  return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}
