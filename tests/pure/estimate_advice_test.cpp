// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/estimate.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace {

using namespace refrain::estimate;
using namespace refrain::literals;
using refrain::Bytes;
using testing::HasSubstr;

Workload work(std::int64_t batch, std::int64_t sequence = 2048) {
  return {.batch = batch, .sequence = sequence};
}

bool says(const Advice& advice, Why why) {
  return std::any_of(advice.reasons.begin(), advice.reasons.end(),
                     [why](const Reason& reason) { return reason.why == why; });
}

TEST(Advice, StoresAllWhereThatFits) {
  const auto advice = recommend(preset("gpt2"), work(8, 1024), {}, 80_GiB);
  EXPECT_EQ(advice.verdict, Verdict::StoreAll);
  EXPECT_EQ(advice.interval, 12);
  EXPECT_EQ(advice.step.overhead, 0);
  EXPECT_TRUE(says(advice, Why::Fits));
  EXPECT_THAT(to_string(advice), HasSubstr("no checkpointing"));
}

TEST(Advice, ChoosesTheFastestIntervalThatFits) {
  const auto model = preset("llama-7b");
  const Training training;
  const auto advice = recommend(model, work(4), training, 96_GiB);
  ASSERT_EQ(advice.verdict, Verdict::Checkpoint) << to_string(advice);
  EXPECT_LE(advice.step.peak, usable(96_GiB, training));
  for (std::int64_t interval = 1; interval <= 32; ++interval) {
    const auto other = step(model, work(4), training, interval);
    if (other.peak <= usable(96_GiB, training)) {
      EXPECT_GE(other.overhead, advice.step.overhead) << interval;
    }
  }
  EXPECT_TRUE(says(advice, Why::CheapestThatFits));
  EXPECT_TRUE(says(advice, Why::BytesSetTheInterval));
  EXPECT_FALSE(says(advice, Why::DropoutHindersEarlyStop));
}

TEST(Advice, WarnsThatFlashAttentionIsRecomputedTwice) {
  const auto advice = recommend(preset("llama-7b"), work(4), {}, 96_GiB);
  EXPECT_TRUE(says(advice, Why::FlashRecomputesTwice));
  // B S D of 2 bytes, and B S H of 4.
  EXPECT_THAT(to_string(advice), HasSubstr("Keeping its result, 65.00 MiB a block"));
}

TEST(Advice, NamesFlashAttentionBeforeReplaysOfPlainAttention) {
  auto plain = work(4);
  plain.attention = Attention::Plain;
  const auto advice = recommend(preset("llama-7b"), plain, {}, 140_GiB);
  EXPECT_EQ(advice.verdict, Verdict::Checkpoint);
  EXPECT_TRUE(says(advice, Why::FlashInsteadOfReplays));
  EXPECT_FALSE(says(advice, Why::FlashRecomputesTwice));
  EXPECT_THAT(to_string(advice), HasSubstr("which fits"));
}

TEST(Advice, SaysThatDropoutHindersEarlyStop) {
  auto dropped = work(8, 1024);
  dropped.residual_dropout = 0.1;
  const auto advice = recommend(preset("gpt2-xl"), dropped, {}, 32_GiB);
  EXPECT_EQ(advice.verdict, Verdict::Checkpoint) << to_string(advice);
  EXPECT_TRUE(says(advice, Why::DropoutHindersEarlyStop));
}

TEST(Advice, ShrinksTheBatchOnlyWhenNoIntervalFits) {
  const auto model = preset("llama-7b");
  const Training training;
  const auto advice = recommend(model, work(64), training, 96_GiB);
  ASSERT_EQ(advice.verdict, Verdict::SmallerBatch) << to_string(advice);
  EXPECT_LE(advice.step.peak, usable(96_GiB, training));
  for (std::int64_t interval = 1; interval <= 32; ++interval) {
    EXPECT_GT(step(model, work(advice.batch + 1), training, interval).peak,
              usable(96_GiB, training));
  }
}

TEST(Advice, StoresAllOfASmallerBatchWhereReplaysGainNothing) {
  auto model = preset("gpt2");
  model.blocks = 1;
  const auto advice = recommend(model, work(4096, 1024), {}, 80_GiB);
  EXPECT_EQ(advice.verdict, Verdict::SmallerBatch);
  EXPECT_TRUE(says(advice, Why::LossSetsThePeak));
  EXPECT_FALSE(says(advice, Why::CheapestThatFits));
  EXPECT_THAT(to_string(advice), HasSubstr(", store all"));
}

TEST(Advice, NamesTheStatesWhereNotEvenOneSampleFits) {
  const auto advice = recommend(preset("llama-70b"), work(1), {}, 80_GiB);
  EXPECT_EQ(advice.verdict, Verdict::Shrink);
  EXPECT_EQ(advice.batch, 0);
  EXPECT_TRUE(says(advice, Why::NotEvenOneSample));
  EXPECT_THAT(to_string(advice), HasSubstr("770.87 GiB"));  // 12 bytes a parameter
}

TEST(Advice, NamesTheLossWhereItSetsThePeak) {
  const auto advice = recommend(preset("llama3-8b"), work(1, 65536), {}, 256_GiB);
  EXPECT_EQ(advice.verdict, Verdict::Checkpoint) << to_string(advice);
  EXPECT_TRUE(says(advice, Why::LossSetsThePeak));
}

TEST(Sweep, HasARowForEachIntervalWithItsLargestBatch) {
  const auto model = preset("llama-7b");
  const Training training;
  const auto rows = sweep(model, work(4), training, 96_GiB);
  ASSERT_EQ(rows.size(), 6);  // 1 to 32
  for (const SweepRow& row : rows) {
    EXPECT_EQ(row.fits, row.largest_batch >= 4);
    EXPECT_LE(step(model, work(row.largest_batch), training, row.interval).peak,
              usable(96_GiB, training));
    EXPECT_GT(step(model, work(row.largest_batch + 1), training, row.interval).peak,
              usable(96_GiB, training));
    EXPECT_DOUBLE_EQ(row.throughput, 1 / (1 + row.step.overhead));
  }
  EXPECT_EQ(rows.back().step.overhead, 0);
  EXPECT_GT(rows.front().largest_batch, 3 * rows.back().largest_batch);
  EXPECT_EQ(sweep(preset("gpt2"), work(1, 1024), {}, 80_GiB).back().interval, 12);
}

TEST(Sweep, LargerBatchesPayWhereSomeTimeIsFixed) {
  const auto linear = sweep(preset("llama-7b"), work(1), {}, 96_GiB);
  EXPECT_LT(linear.front().throughput, linear.back().throughput);
  const auto fixed = sweep(preset("llama-7b"), work(1), {}, 96_GiB, 10);
  EXPECT_GT(fixed.front().throughput, fixed.back().throughput);
}

TEST(Sweep, IsPrintedAsATable) {
  const auto text = to_string(sweep(preset("gpt2"), work(1, 1024), {}, 8_GiB));
  EXPECT_THAT(text, HasSubstr("largest batch"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);  // 1, 2, 4, 8, 12 and the heading
}

}  // namespace
