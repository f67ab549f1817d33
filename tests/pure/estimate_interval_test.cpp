// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/oracles.hpp"
#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/estimate/article.hpp>
#include <refrain/estimate/block.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/interval.hpp>
#include <refrain/estimate/workload.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

namespace estimate = refrain::estimate;
using nlohmann::json;
using refrain::Bytes;
using namespace refrain::literals;

const json& corrected() {
  static const json values = support::oracle("article_model.json")["corrected"];
  return values;
}

estimate::Workload work(std::int64_t batch, estimate::Attention attention) {
  estimate::Workload work{.batch = batch, .sequence = 2048};
  work.attention = attention;
  return work;
}

estimate::EqualBlocks blocks(std::int64_t batch, estimate::Attention attention) {
  return estimate::equal_blocks(
      32, estimate::block_bytes(estimate::gpt_block(4096, 32), work(batch, attention)));
}

double gib(Bytes bytes) { return bytes / 1_GiB; }

void expect_value(const json& expected, double got) {
  EXPECT_NEAR(got, expected.get<double>(), std::abs(expected.get<double>()) * 1e-12);
}

constexpr auto kPlain = estimate::Attention::Plain;
constexpr auto kFlash = estimate::Attention::Flash;

TEST(EqualBlocks, HaveTheBytesOfTheTable) {
  EXPECT_EQ(blocks(4, kPlain).boundary, Bytes(corrected()["X_mib"].get<std::int64_t>() << 20));
  EXPECT_EQ(blocks(4, kPlain).kept, Bytes(corrected()["A_eager_mib"].get<std::int64_t>() << 20));
  EXPECT_EQ(blocks(4, kFlash).kept, Bytes(corrected()["A_flash_mib"].get<std::int64_t>() << 20));
  expect_value(corrected()["K_star_eager"], estimate::ideal_interval(blocks(4, kPlain)));
  expect_value(corrected()["K_star_flash"], estimate::ideal_interval(blocks(4, kFlash)));
  EXPECT_EQ(estimate::best_interval(blocks(4, kPlain)), 1);
}

TEST(EqualBlocks, GiveTheWholeComparison) {
  const double layer = corrected()["article_act_per_layer_mib"].get<double>() / 1024;
  const double rebate = estimate::early_stop_rebate(estimate::gpt_block(4096, 32), work(4, kPlain));
  EXPECT_NEAR(rebate, 1 / 3.25, 1e-15);
  ASSERT_EQ(corrected()["rows"].size(), 7);
  for (const json& row : corrected()["rows"]) {
    const std::int64_t k = row["K"];
    const Bytes plain = estimate::peak(blocks(4, kPlain), k);
    const auto article = estimate::article::simulate_memory_and_flops(32, k, layer);
    expect_value(row["corrected_eager_gb"], gib(plain));
    expect_value(row["corrected_flash_gb"], gib(estimate::peak(blocks(4, kFlash), k)));
    expect_value(row["article_gb"], article.activation_gb);
    expect_value(row["article_over_corrected_eager"], article.activation_gb / gib(plain));
    expect_value(row["article_extra_forward_pct"], article.extra_forward_pct);
    expect_value(row["article_extra_step_pct"], article.extra_step_pct);
    const double whole = estimate::extra_forward(32, k);
    const double early = estimate::extra_forward(32, k, rebate);
    expect_value(row["corrected_extra_forward_pct"], 100 * whole);
    expect_value(row["corrected_extra_forward_pct_early_stop"], 100 * early);
    expect_value(row["corrected_extra_step_pct"], 100 * estimate::extra_step(whole));
    expect_value(row["corrected_extra_step_pct_early_stop"], 100 * estimate::extra_step(early));
    EXPECT_EQ(estimate::article::max_batch_for_ckpt(32, k, layer / 4, 60),
              row["max_batch_article"].get<std::int64_t>());
    EXPECT_EQ(estimate::largest_batch(blocks(1, kPlain), k, 60_GiB, 80_GiB),
              row["max_batch_corrected_eager"].get<std::int64_t>());
    EXPECT_EQ(estimate::largest_batch(blocks(1, kFlash), k, 60_GiB, 80_GiB),
              row["max_batch_corrected_flash"].get<std::int64_t>());
  }
}

TEST(EqualBlocks, GiveTheTableInUnits) {
  for (const json& row : corrected()["units_sbh"]["rows"]) {
    const std::int64_t k = row["K"];
    EXPECT_EQ(estimate::peak({32, Bytes(2), Bytes(34)}, k), Bytes(row["peak"].get<std::int64_t>()));
  }
}

TEST(EqualBlocks, PeakAsSimulatedForEveryInterval) {
  for (const std::int64_t saved : {1, 3, 17}) {
    for (std::int64_t k = 1; k <= 32; ++k) {
      std::vector<refrain::Segment> cut;
      std::vector<refrain::SegmentNode> nodes;
      for (std::int64_t begin = 0; begin < 32; begin += k) {
        cut.push_back({begin, std::min<std::int64_t>(begin + k, 32)});
        nodes.push_back({cut.back(), cut.back().end < 32});
      }
      const auto real =
          refrain::simulate({32, nodes}, support::equal_chain(32, saved), refrain::Executor::Flat);
      const estimate::EqualBlocks chain{32, Bytes(1), Bytes(saved)};
      EXPECT_EQ(estimate::peak(chain, k), Bytes(real.peak)) << saved << " " << k;
      EXPECT_EQ(estimate::peak(chain, cut), Bytes(real.peak)) << saved << " " << k;
      EXPECT_NEAR(estimate::extra_forward(32, k), (static_cast<double>(real.forwards) - 32) / 32,
                  1e-12);
    }
  }
}

TEST(EqualBlocks, OfOneOperationHaveTheirBestAtTheRoot) {
  EXPECT_DOUBLE_EQ(estimate::ideal_interval({36, 1_MiB, 1_MiB}), 6);
  EXPECT_EQ(estimate::best_interval({36, 1_MiB, 1_MiB}), 6);
}

TEST(Throughput, GrowsWithTheBatchOnlyWhereSomeTimeIsFixed) {
  EXPECT_DOUBLE_EQ(estimate::throughput(3, 0.25), 0.8);  // the calculator says 2.4
  EXPECT_DOUBLE_EQ(estimate::throughput(1, 0), 1);
  EXPECT_DOUBLE_EQ(estimate::throughput(1, 0, 4), 0.2);
  EXPECT_DOUBLE_EQ(estimate::throughput(3, 0.25, 4), 3 / 7.75);
  EXPECT_EQ(estimate::throughput(0, 0.25), 0);
}

TEST(Intervals, AreRefusedWhereTheyMeanNothing) {
  using refrain::OptionError;
  const auto chain = blocks(4, kFlash);
  support::expect_says<OptionError>({"segments of 33 of 32 blocks", "choose 1"},
                                    [&] { (void)estimate::peak(chain, 33); });
  EXPECT_THROW((void)estimate::peak(chain, 0), OptionError);
  EXPECT_THROW((void)estimate::extra_forward(32, 1, 1), OptionError);
  EXPECT_THROW((void)estimate::extra_step(0.5, 0), OptionError);
  EXPECT_THROW((void)estimate::ideal_interval({0, 1_B, 1_B}), OptionError);
  EXPECT_THROW((void)estimate::throughput(-1, 0), OptionError);
  EXPECT_EQ(estimate::largest_batch(chain, 1, 80_GiB, 60_GiB), 0);
}

}  // namespace
