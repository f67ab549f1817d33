// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/estimate/block.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/block_flops.hpp>
#include <refrain/estimate/workload.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace {

using namespace refrain::estimate;
using namespace refrain::literals;
using refrain::Bytes;
using refrain::OptionError;

constexpr std::int64_t kB = 4, kS = 2048, kD = 4096, kH = 32;
constexpr std::int64_t kSbh = kB * kS * kD;

Workload plain(Bytes element = Bytes(2)) {
  return {.batch = kB, .sequence = kS, .element = element, .attention = Attention::Plain};
}
Workload flash() { return {.batch = kB, .sequence = kS}; }
Workload with_dropout(Workload work) {
  work.attention_dropout = 0.1;
  work.residual_dropout = 0.1;
  return work;
}

TEST(BlockBytes, OfAGptBlockWithPlainAttentionAre16BsdAndBhss) {
  const auto bytes = block_bytes(gpt_block(kD, kH), plain(4_B));
  EXPECT_EQ(bytes.kept(), Bytes(4 * (16 * kSbh + kB * kH * kS * kS)));
  EXPECT_EQ(bytes.attention, Bytes(4 * kB * kH * kS * kS));
  EXPECT_EQ(bytes.boundary, Bytes(4 * kSbh));
}

TEST(BlockBytes, WithDropoutAreKorthikantis) {
  const auto block = gpt_block(kD, kH);
  EXPECT_EQ(block_bytes(block, with_dropout(plain())).kept(),
            Bytes(34 * kSbh + 5 * kH * kS * kSbh / kD));
  EXPECT_EQ(block_bytes(block, with_dropout(flash())).kept(),
            Bytes(34 * kSbh + 4 * kH * kSbh / kD));
  EXPECT_EQ(block_bytes(block, flash()).kept(), Bytes(32 * kSbh + 4 * kH * kSbh / kD));
}

TEST(BlockBytes, MasksOfTheCpuAreAsLargeAsElements) {
  auto work = with_dropout(plain(4_B));
  work.mask = 4_B;
  EXPECT_EQ(block_bytes(gpt_block(kD, kH), work).kept(),
            Bytes(4 * (18 * kSbh + 3 * kB * kH * kS * kS)));
}

TEST(BlockBytes, OfALlamaLikeBlockFollowItsShares) {
  const auto bytes = block_bytes(llama_block(kD, kH, 8, 14336), flash());
  EXPECT_EQ(bytes.kept(), Bytes(41 * kSbh + 4 * kH * kSbh / kD));  // 20.5 elements
  EXPECT_EQ(bytes.qkv, Bytes(2 * kSbh * 3 / 2));
  // Plain attention repeats keys and values.
  EXPECT_EQ(block_bytes(llama_block(kD, kH, 8, 14336), plain()).qkv, Bytes(6 * kSbh));
}

TEST(BlockBytes, EagerRmsNormsKeepMore) {
  auto block = llama_block(kD, kH, kH, 4 * kD);
  const auto fused4 = block_bytes(block, plain(4_B));
  const auto fused2 = block_bytes(block, plain());
  block.norm = Norm::EagerRms;
  EXPECT_EQ(block_bytes(block, plain(4_B)).kept() - fused4.kept(), Bytes(8 * kSbh));
  // Two results of 2, two copies of the input in 4, one input less.
  EXPECT_EQ(block_bytes(block, plain()).kept() - fused2.kept(), Bytes((2 * 2 + 2 * 4 - 2) * kSbh));
}

TEST(BlockBytes, AreCutByTensorParallelismInTheMatricesAlone) {
  auto work = with_dropout(plain());
  work.tensor_parallel = 8;
  const auto block = gpt_block(kD, kH);
  EXPECT_EQ(block_bytes(block, work).kept(),
            Bytes(10 * kSbh + (24 * kSbh + 5 * kH * kS * kSbh / kD) / 8));
  EXPECT_EQ(block_bytes(block, work).boundary, Bytes(2 * kSbh));
  work.sequence_parallel = SequenceParallel::On;
  EXPECT_EQ(8 * block_bytes(block, work).kept(), block_bytes(block, with_dropout(plain())).kept());
  EXPECT_EQ(block_bytes(block, work).boundary, Bytes(2 * kSbh / 8));
}

TEST(BlockFlops, StopEarlyBeforeTheLastProjection) {
  const auto gpt = block_flops(gpt_block(kD, kH), plain());
  EXPECT_DOUBLE_EQ(gpt.tail / gpt.forward, 8.0 / (24 + 4.0 * kS / kD));
  EXPECT_DOUBLE_EQ(gpt.backward, 2 * gpt.forward);
  const auto llama = block_flops(llama_block(kD, kH, 8, 14336), flash());
  EXPECT_DOUBLE_EQ(llama.tail / llama.forward, 7.0 / (4 + 4 * 0.25 + 6 * 3.5 + 2.0 * kS / kD));
  EXPECT_EQ(block_flops(gpt_block(kD, kH), with_dropout(plain())).tail, 0);
}

TEST(BlockFlops, OfFlashAttentionMakeTheScoresAgainInTheBackward) {
  const auto block = gpt_block(kD, kH);
  const auto fused = block_flops(block, flash());
  EXPECT_DOUBLE_EQ(2 * fused.attention, block_flops(block, plain()).attention);  // the causal half
  EXPECT_DOUBLE_EQ(fused.backward, 2 * fused.forward + 0.5 * fused.attention);
}

TEST(BlockFlops, AreSixForEachParameterAndTokenBesideAttention) {
  const auto block = llama_block(kD, kH, kH, 11008);
  const auto flops = block_flops(block, plain());
  const double matrices = static_cast<double>(parameters(block) - 2 * kD);
  const double all = flops.forward + flops.backward - 3 * flops.attention;
  EXPECT_DOUBLE_EQ(all, 6 * matrices * static_cast<double>(kB * kS));
}

TEST(BlockShape, IsRefusedWhereItDoesNotDivide) {
  support::expect_says<OptionError>({"width of 100", "12 heads", "divides 100"},
                                    [] { (void)block_bytes(gpt_block(100, 12), flash()); });
  support::expect_says<OptionError>({"heads: 32", "5 key and value heads"}, [] {
    (void)block_bytes(llama_block(kD, kH, 5, 11008), flash());
  });
  auto work = flash();
  work.tensor_parallel = 16;
  support::expect_says<OptionError>({"key and value heads: 8", "16 tensor parallel"}, [&] {
    (void)block_bytes(llama_block(kD, kH, 8, 14336), work);
  });
  work.tensor_parallel = 3;
  EXPECT_THROW((void)block_bytes(gpt_block(kD, kH), work), OptionError);
}

TEST(BlockShape, IsRefusedWhereItIsNotPositive) {
  EXPECT_THROW((void)parameters(gpt_block(0, kH)), OptionError);
  EXPECT_THROW((void)parameters(gpt_block(kD, 0)), OptionError);
  EXPECT_THROW((void)parameters(llama_block(kD, kH, 0, 11008)), OptionError);
  EXPECT_THROW((void)parameters(llama_block(kD, kH, 8, -1)), OptionError);
}

TEST(Workload, IsRefusedWhereItMeansNothing) {
  const auto refuses = [](auto change) {
    auto work = flash();
    change(work);
    EXPECT_THROW((void)block_bytes(gpt_block(kD, kH), work), OptionError);
  };
  refuses([](Workload& work) { work.batch = 0; });
  refuses([](Workload& work) { work.sequence = -1; });
  refuses([](Workload& work) { work.element = 0_B; });
  refuses([](Workload& work) { work.mask = 0_B; });
  refuses([](Workload& work) { work.attention_dropout = 1; });
  refuses([](Workload& work) { work.residual_dropout = -0.1; });
  refuses([](Workload& work) { work.tensor_parallel = 0; });
  refuses([](Workload& work) {
    work.sequence = 2049;
    work.tensor_parallel = 2;
    work.sequence_parallel = SequenceParallel::On;
  });
  refuses([](Workload& work) { work.batch = std::numeric_limits<std::int64_t>::max() / 2; });
}

}  // namespace
