// SPDX-License-Identifier: BSD-3-Clause
// What does it save, and cost, to keep some results of a region? Transformer blocks with attention
// written out and with the fused kernel: bytes that a forward keeps and the time of a step, for
// whole regions, regions that keep, and regions around a part. One thread, processor time, medians
// of interleaved steps. PyTorch's selective checkpointing beside them where it was asked for.
#include "kept_memory.hpp"
#include "peers.hpp"
#include "processor_time.hpp"
#include <refrain/memory.hpp>
#include <refrain/refrain.hpp>

#include <torch/torch.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace policy = refrain::policy;
using nlohmann::json;

constexpr std::int64_t kBatch = 1;
constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kWidth = 768;
constexpr std::int64_t kHeads = 24;
constexpr double kMiB = 1024.0 * 1024.0;

/// softmax(Q Kᵀ / √d) V, written out; causal.
struct CoreAttentionImpl : nn::Module {
  CoreAttentionImpl() {
    mask = register_buffer("mask", torch::ones({kTokens, kTokens}, torch::kBool).triu(1));
  }
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v) {
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
    auto scores = torch::matmul(q * scale, k.transpose(-2, -1));
    scores = scores.masked_fill(mask, -1e9);
    return torch::matmul(torch::softmax(scores, -1), v);
  }
  Tensor mask;
};
TORCH_MODULE(CoreAttention);

enum class Attention { WrittenOut, Fused, WrittenOutInARegion };

struct BlockImpl : nn::Module {
  explicit BlockImpl(Attention kind) : kind_(kind) {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", nn::Linear(kWidth, kWidth));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", nn::Linear(4 * kWidth, kWidth));
    core = register_module("core", CoreAttention());
    quiet_core = refrain::checkpoint(core);
  }
  Tensor forward(const Tensor& x) {
    const auto h = x + out(attend(norm1(x)));
    return h + down(torch::gelu(up(norm2(h))));
  }
  Tensor attend(const Tensor& x) {
    const auto parts = qkv(x)
                           .view({kBatch, kTokens, 3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    Tensor mixed;
    switch (kind_) {
      case Attention::WrittenOut:
        mixed = core(parts[0], parts[1], parts[2]);
        break;
      case Attention::WrittenOutInARegion:
        mixed = quiet_core(parts[0], parts[1], parts[2]);
        break;
      case Attention::Fused:
        mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                 /*is_causal=*/true);
        break;
    }
    return mixed.transpose(1, 2).reshape(x.sizes());
  }

 private:
  Attention kind_;
  nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
  nn::Linear qkv = nullptr, out = nullptr, up = nullptr, down = nullptr;
  CoreAttention core = nullptr;
  refrain::Checkpoint<CoreAttention> quiet_core = nullptr;
};
TORCH_MODULE(Block);

struct Way {
  std::string name;
  std::function<Tensor(Tensor)> block;
  std::vector<double> seconds;
  std::int64_t kept = 0;
};

void step(const Way& way, const Tensor& x, const Tensor& seed) { way.block(x).backward(seed); }

json measure(const std::string& title, std::vector<Way> ways, int repeats) {
  const auto x = torch::randn({kBatch, kTokens, kWidth}).requires_grad_();
  const auto seed = torch::randn_like(x);
  for (Way& way : ways) {
    step(way, x, seed);
    const auto before = refrain::memory().live.count();
    const auto y = way.block(x);
    way.kept = refrain::memory().live.count() - before - static_cast<std::int64_t>(y.nbytes());
  }
  for (int i = 0; i < repeats; ++i) {
    for (Way& way : ways) way.seconds.push_back(bench::seconds_of([&] { step(way, x, seed); }));
  }
  fmt::print("\n### {}\n\n| what | keeps | saved | step |\n|---|---|---|---|\n", title);
  json rows = json::array();
  const Way& plain = ways.front();
  for (const Way& way : ways) {
    const double saved = 1 - static_cast<double>(way.kept) / static_cast<double>(plain.kept);
    const double time = bench::median(way.seconds) / bench::median(plain.seconds);
    fmt::print("| {} | {:.2f} MiB | {:.0f} % | {:.3f} |\n", way.name,
               static_cast<double>(way.kept) / kMiB, 100 * saved, time);
    rows.push_back(
        {{"what", way.name}, {"kept_bytes", way.kept}, {"saved", saved}, {"step", time}});
  }
  return {{"block", title}, {"rows", rows}};
}

Way of(const std::string& name, Block block) {
  return {name, [block](Tensor x) mutable { return block(x); }, {}, 0};
}

Way region(const std::string& name, Block block, const refrain::CheckpointOptions& how) {
  return {name, refrain::checkpoint([block](Tensor x) mutable { return block(x); }, how), {}, 0};
}

void print_peers(const json& peers) {
  if (!peers.is_array()) return;
  fmt::print(
      "\n### PyTorch's, on the same blocks\n\n| what | keeps | saved | step "
      "|\n|---|---|---|---|\n");
  for (const auto& row : peers) {
    fmt::print("| {} | {:.2f} MiB | {:.0f} % | {:.3f} |\n", row.at("what").get<std::string>(),
               row.at("kept_bytes").get<double>() / kMiB, 100 * row.at("saved").get<double>(),
               row.at("step").get<double>());
  }
}

/// Microseconds of processor time a call, the median of rounds.
double microseconds(int count, const std::function<void()>& call) {
  constexpr int kRounds = 9;
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    times.push_back(1e6 / count * bench::seconds_of([&] {
                      for (int i = 0; i < count; ++i) call();
                    }));
  }
  return bench::median(std::move(times));
}

/// What the tap costs a call of an operator: 16 numbers, so that nothing else takes time.
json tap_cost() {
  constexpr int kCalls = 20000;
  constexpr int kLength = 200;
  const auto x = torch::randn({4, 4}).requires_grad_();
  const auto sinh = [&] { (void)x.sinh(); };
  const auto cosh = [&] { (void)x.cosh(); };
  const double before = microseconds(kCalls, sinh);
  const double other_before = microseconds(kCalls, cosh);
  const auto chain = [](Tensor t) {
    for (int i = 0; i < kLength; ++i) t = t.sinh();
    return t;
  };
  auto whole = refrain::checkpoint(chain);
  const double in_region = microseconds(kCalls / kLength, [&] { (void)whole(x); }) / kLength;
  auto keeping = refrain::checkpoint(chain, policy::keep_ops({"sinh"}));
  const double kept = microseconds(kCalls / kLength, [&] { (void)keeping(x); }) / kLength;
  const double chosen_elsewhere = microseconds(kCalls / kLength, [&] { (void)whole(x); }) / kLength;
  const double after = microseconds(kCalls, sinh);
  const double other_after = microseconds(kCalls, cosh);
  fmt::print(
      "\nMicroseconds a call of an operator on 16 numbers:\n"
      "outside regions {:.2f} before it is chosen somewhere, {:.2f} after; another operator {:.2f} "
      "and {:.2f};\nin a region {:.2f} before, {:.2f} after; {:.2f} where its result is kept.\n",
      before, after, other_before, other_after, in_region, chosen_elsewhere, kept);
  return {{"outside_before", before},     {"outside_after", after},
          {"other_before", other_before}, {"other_after", other_after},
          {"region_before", in_region},   {"region_after", chosen_elsewhere},
          {"region_kept", kept}};
}

}  // namespace

int main(int argc, char** argv) {
  refrain::count_cpu_memory();
  at::set_num_threads(1);
  torch::manual_seed(0);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  auto results = json::object();
  results["tap"] = tap_cost();
  bench::keep_memory();  // after tiny tensors, whose times it spoils
  const Block eager(Attention::WrittenOut);
  const Block eager_core(Attention::WrittenOutInARegion);
  const Block fused(Attention::Fused);
  results["blocks"] = {measure("attention written out",
                               {of("plain", eager), region("replay all", eager, {}),
                                of("replay the attention core", eager_core),
                                region("keep_matmuls()", eager, policy::keep_matmuls()),
                                region("keep_ops(linear)", eager, policy::keep_ops({"linear"})),
                                region("keep_matmuls() + keep_ops(softmax)", eager,
                                       policy::keep_matmuls() + policy::keep_ops({"softmax"}))},
                               repeats),
                       measure("fused attention",
                               {of("plain", fused), region("replay all", fused, {}),
                                region("keep_attention()", fused, policy::keep_attention()),
                                region("keep_matmuls()", fused, policy::keep_matmuls()),
                                region("replay_norms_and_activations()", fused,
                                       policy::replay_norms_and_activations())},
                               repeats)};
  const auto peers = bench::peer("selective.py", std::to_string(repeats));
  results["pytorch"] = peers;
  print_peers(peers);
  const auto path = std::string(REFRAIN_RESULTS) + "/selective_bench.json";
  std::ofstream(path) << results.dump(2) << "\n";
  fmt::print(
      "\n{} tokens, {} numbers each, {} heads, float32. One thread, processor time, malloc keeps "
      "its memory;\nmedians of {} interleaved steps against a plain step. Numbers in {}.\n",
      kTokens, kWidth, kHeads, repeats, path);
}
