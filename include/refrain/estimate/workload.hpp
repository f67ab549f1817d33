// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/estimate/check.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

namespace refrain::estimate {

enum class Attention {
  Plain,  ///< Scores and softmax as tensors; keys and values repeated for all heads.
  Flash,  ///< One fused causal kernel, which keeps a log-sum-exp for each head and token.
};

/// Whether tensor parallelism cuts what lies between its matrices too, along the sequence.
enum class SequenceParallel { Off, On };

/// What a step runs on, and how: all that an estimate needs beside the model.
///
///     estimate::Workload work{.batch = 4, .sequence = 2048};
///     work.attention = estimate::Attention::Plain;
///
/// Dropout rates matter only by being zero or not. A mask takes 1 byte an element where one kernel
/// does it all (CUDA), and the size of an element where it is made of several (LibTorch's CPU).
struct Workload {
  std::int64_t batch = 1;
  std::int64_t sequence = 0;
  Bytes element = Bytes(2);  ///< Of activations.
  Attention attention = Attention::Flash;
  double attention_dropout = 0;  ///< On the attention weights.
  double residual_dropout = 0;   ///< On both branches of a block, and on the embedding.
  Bytes mask = Bytes(1);         ///< Of a dropout's mask.
  std::int64_t tensor_parallel = 1;
  SequenceParallel sequence_parallel = SequenceParallel::Off;

  [[nodiscard]] std::int64_t tokens() const { return detail::product({batch, sequence}); }
  /// Into how many devices what lies between the matrices is cut.
  [[nodiscard]] std::int64_t between() const {
    return sequence_parallel == SequenceParallel::On ? tensor_parallel : 1;
  }
};

namespace detail {

inline void check_rate(std::string_view what, double rate) {
  if (rate >= 0 && rate < 1) return;
  throw OptionError(fmt::format("estimate: {} is {}, it must be in [0, 1).", what, rate));
}

inline void check(const Workload& work) {
  at_least_one("the batch", work.batch);
  at_least_one("the sequence", work.sequence);
  at_least_one("the element size", work.element.count());
  at_least_one("the mask size", work.mask.count());
  at_least_one("the tensor parallel degree", work.tensor_parallel);
  check_rate("the attention dropout", work.attention_dropout);
  check_rate("the residual dropout", work.residual_dropout);
  divides("a sequence of", work.sequence, "sequence parallel parts", work.between());
}

}  // namespace detail
}  // namespace refrain::estimate
