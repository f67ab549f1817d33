// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/estimate/block.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/check.hpp>
#include <refrain/estimate/workload.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::estimate {

/// Whether the head's matrix is the embedding's.
enum class Head { Tied, Own };

/// A language model: an embedding, equal blocks, a norm, and a head that gives logits.
struct ModelShape {
  std::string name;
  BlockShape block;
  std::int64_t blocks = 0;
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;  ///< Learned ones; 0 where the attention rotates instead.
  Head head = Head::Own;
};

namespace detail {

inline void check(const ModelShape& model) {
  check(model.block);
  at_least_one("the number of blocks", model.blocks);
  at_least_one("the vocabulary", model.vocabulary);
  if (model.positions < 0) {
    throw OptionError(fmt::format("estimate: {} positions.", model.positions),
                      "use 0 where positions are not learned.");
  }
}

/// Rows of the embedding on each device: the vocabulary is padded to equal parts.
[[nodiscard]] inline std::int64_t vocabulary_part(const ModelShape& model, std::int64_t parts) {
  return (model.vocabulary + parts - 1) / parts;
}

}  // namespace detail

/// Parameters of the model's parts, on one device where tensor parallelism cuts it.
struct ModelParameters {
  std::int64_t embedding = 0;  ///< With learned positions.
  std::int64_t block = 0;      ///< One of them.
  std::int64_t head = 0;       ///< The last norm, and a matrix that is not the embedding's.
};

[[nodiscard]] inline ModelParameters parameters_by_part(const ModelShape& model,
                                                        std::int64_t tensor_parallel = 1) {
  detail::check(model);
  const std::int64_t width = model.block.width;
  const std::int64_t table =
      detail::product({detail::vocabulary_part(model, tensor_parallel), width});
  const std::int64_t norm = width * (model.block.norm == Norm::Layer ? 2 : 1);
  return {table + model.positions * width, parameters(model.block, tensor_parallel),
          norm + (model.head == Head::Own ? table : 0)};
}

///     estimate::parameters(estimate::preset("gpt2"));   // 124439808
[[nodiscard]] inline std::int64_t parameters(const ModelShape& model,
                                             std::int64_t tensor_parallel = 1) {
  const ModelParameters parts = parameters_by_part(model, tensor_parallel);
  return parts.embedding + detail::product({model.blocks, parts.block}) + parts.head;
}

/// What follows the blocks.
struct HeadBytes {
  Bytes norm;    ///< What the last norm keeps.
  Bytes logits;  ///< Elements as everywhere.
  Bytes loss;    ///< While the loss runs, beyond the logits.
};

/// The loss is a cross entropy in 4-byte floats, not fused: log-softmax, its gradient, and that of
/// the logits exist at one time.
[[nodiscard]] inline HeadBytes head_bytes(const ModelShape& model, const Workload& work) {
  detail::check(model);
  detail::check(work);
  const std::int64_t logits =
      detail::product({work.tokens(), detail::vocabulary_part(model, work.tensor_parallel)});
  return {detail::norm_bytes(model.block, work),
          Bytes(detail::product({logits, work.element.count()})),
          Bytes(detail::product({3, logits, detail::kFloat}))};
}

/// The models whose numbers are public.
[[nodiscard]] inline std::vector<ModelShape> presets() {
  constexpr std::int64_t kGpt2Tokens = 50257;
  constexpr std::int64_t kGpt2Positions = 1024;
  constexpr std::int64_t kLlamaTokens = 32000;
  constexpr std::int64_t kLlama3Tokens = 128256;
  const auto gpt2 = [](const char* name, std::int64_t width, std::int64_t heads,
                       std::int64_t blocks) {
    return ModelShape{name,        gpt_block(width, heads), blocks,
                      kGpt2Tokens, kGpt2Positions,          Head::Tied};
  };
  return {gpt2("gpt2", 768, 12, 12),
          gpt2("gpt2-medium", 1024, 16, 24),
          gpt2("gpt2-large", 1280, 20, 36),
          gpt2("gpt2-xl", 1600, 25, 48),
          {"llama-7b", llama_block(4096, 32, 32, 11008), 32, kLlamaTokens},
          {"llama-13b", llama_block(5120, 40, 40, 13824), 40, kLlamaTokens},
          {"llama-70b", llama_block(8192, 64, 8, 28672), 80, kLlamaTokens},
          {"llama3-8b", llama_block(4096, 32, 8, 14336), 32, kLlama3Tokens}};
}

/// Throws `OptionError` with all names if it has none of that.
[[nodiscard]] inline ModelShape preset(std::string_view name) {
  std::string names;
  for (const ModelShape& model : presets()) {
    if (model.name == name) return model;
    names += (names.empty() ? "" : ", ") + model.name;
  }
  throw OptionError(fmt::format("estimate: no model is called `{}`.", name),
                    fmt::format("known are {}; or fill in a ModelShape.", names));
}

}  // namespace refrain::estimate
