// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/chain.hpp>
#include <refrain/estimate/model.hpp>
#include <refrain/estimate/training.hpp>
#include <refrain/estimate/workload.hpp>
#include <refrain/plan.hpp>
#include <refrain/planner/frontier.hpp>
#include <refrain/schedule.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

namespace {

using namespace refrain::estimate;
using namespace refrain::literals;
using refrain::Bytes;
using refrain::OptionError;

TEST(Presets, HaveTheirPublicNumberOfParameters) {
  for (const auto& [name, count] :
       {std::pair{"gpt2", 124'439'808L}, std::pair{"gpt2-medium", 354'823'168L},
        std::pair{"gpt2-large", 774'030'080L}, std::pair{"gpt2-xl", 1'557'611'200L},
        std::pair{"llama-7b", 6'738'415'616L}, std::pair{"llama-13b", 13'015'864'320L},
        std::pair{"llama-70b", 68'976'648'192L}, std::pair{"llama3-8b", 8'030'261'248L}})
    EXPECT_EQ(parameters(preset(name)), count) << name;
  EXPECT_EQ(presets().size(), 8);
  support::expect_says<OptionError>({"`gpt5`", "llama3-8b"}, [] { (void)preset("gpt5"); });
}

TEST(ModelShape, IsCutByTensorParallelism) {
  const auto model = preset("llama-7b");
  const std::int64_t norms = 65L * 4096;  // two a block, and the last
  EXPECT_EQ(8 * (parameters(model, 8) - norms), parameters(model) - norms);
  const auto gpt2 = preset("gpt2");
  EXPECT_EQ(parameters_by_part(gpt2, 4).embedding, (12565 + 1024) * 768);  // 50257 rows, padded
}

TEST(ModelShape, IsRefusedWhereItIsNone) {
  auto model = preset("gpt2");
  model.blocks = 0;
  EXPECT_THROW((void)parameters(model), OptionError);
  model = preset("gpt2");
  model.vocabulary = -1;
  EXPECT_THROW((void)head_bytes(model, {.sequence = 1024}), OptionError);
  model = preset("gpt2");
  model.positions = -1;
  EXPECT_THROW((void)parameters(model), OptionError);
}

TEST(StateBytes, AreThoseOfEachOptimizer) {
  const auto model = preset("llama-7b");
  const std::int64_t n = parameters(model);
  Training training;
  EXPECT_EQ(state_bytes(model, training).total(), Bytes(12 * n));
  training.master = 4_B;
  EXPECT_EQ(state_bytes(model, training).total(), Bytes(16 * n));
  training.optimizer = Optimizer::Momentum;
  EXPECT_EQ(state_bytes(model, training).optimizer, Bytes(4 * n));
  training.optimizer = Optimizer::Sgd;
  EXPECT_EQ(state_bytes(model, training).optimizer, 0_B);
  training.optimizer = Optimizer::Adam8bit;
  EXPECT_EQ(state_bytes(model, training).optimizer, Bytes(2 * n + 8 * n / 256));
  training.optimizer = Optimizer::Adam;
  training.moment = 2_B;  // of parameters in 2 bytes without a master copy
  EXPECT_EQ(state_bytes(model, training).optimizer, Bytes(4 * n));
}

TEST(Training, IsRefusedWhereItMeansNothing) {
  const auto refuses = [](auto change) {
    Training training;
    change(training);
    EXPECT_THROW((void)state_bytes(preset("gpt2"), training), OptionError);
  };
  refuses([](Training& training) { training.parameter = 0_B; });
  refuses([](Training& training) { training.gradient = 0_B; });
  refuses([](Training& training) { training.moment = 0_B; });
  refuses([](Training& training) { training.master = Bytes(-4); });
  refuses([](Training& training) { training.fragmentation = 1; });
  EXPECT_THROW((void)usable(0_B, {}), OptionError);
  Training tenth;
  tenth.fragmentation = 0.1;
  EXPECT_EQ(usable(80_GiB, tenth), 72_GiB);
}

TEST(HeadBytes, OfALargeVocabularyExceedBlocks) {
  const Workload work{.batch = 1, .sequence = 8192};
  const auto model = preset("llama3-8b");
  const auto head = head_bytes(model, work);
  EXPECT_EQ(head.logits, Bytes(2L * 8192 * 128256));
  EXPECT_EQ(head.loss, 6 * head.logits);  // three times in 4 bytes
  EXPECT_GT(head.loss / block_bytes(model.block, work).kept(), 4);
}

TEST(ChainOf, IsTheEmbeddingTheBlocksAndTheHead) {
  const auto model = preset("gpt2");
  const Workload work{.batch = 8, .sequence = 1024};
  const auto chain = chain_of(model, work);
  ASSERT_EQ(chain.size(), 14);
  EXPECT_EQ(chain[0].input, 8 * 8 * 1024);  // ids
  EXPECT_EQ(Bytes(chain[5].plain.saved), block_bytes(model.block, work).kept());
  EXPECT_EQ(chain[13].name, "head");
  EXPECT_EQ(Bytes(chain.held), head_bytes(model, work).logits);
  std::int64_t gradients = 0;
  for (const auto& stage : chain.stages) gradients += stage.gradients;
  EXPECT_EQ(Bytes(gradients), state_bytes(model, {}).gradients);
  for (std::int64_t i = 0; i + 1 < chain.size(); ++i)
    EXPECT_EQ(chain[i].output, chain[i + 1].input);
}

TEST(ChainOf, MakesTheGradientOfATiedEmbeddingInTheHead) {
  auto model = preset("gpt2");
  const Workload work{.batch = 8, .sequence = 1024};
  const auto tied = chain_of(model, work);
  model.head = Head::Own;
  const auto own = chain_of(model, work);
  EXPECT_EQ(tied[13].gradients, own[13].gradients);
  EXPECT_EQ(own[0].gradients - tied[0].gradients, 2 * 50257 * 768);
  EXPECT_EQ(tied[0].plain.backward_peak, own[0].plain.backward_peak);  // it is made, then added
}

TEST(ChainOf, CountsAStagesOwnGradientsInItsBackward) {
  const auto model = preset("llama3-8b");
  const Workload work{.batch = 1, .sequence = 2048};
  Training wide;
  wide.gradient = 4_B;
  const auto in2 = chain_of(model, work);
  const auto in4 = chain_of(model, work, wide);
  const auto counts = parameters_by_part(model);
  EXPECT_EQ(in4[1].plain.backward_peak - in2[1].plain.backward_peak, 2 * counts.block);
  EXPECT_EQ(in4[33].plain.backward_peak - in2[33].plain.backward_peak, 2 * counts.head);
}

TEST(ChainOf, LetsThePlannerKeepABudget) {
  const auto model = preset("llama-7b");
  const Workload work{.batch = 2, .sequence = 2048};
  const auto profile = profile_of(model, work);
  const auto states = state_bytes(model, {});
  EXPECT_EQ(profile.resident, states.total() - states.gradients);
  const auto plain = refrain::plain_cost(profile);
  EXPECT_GT(plain.peak, 32 * block_bytes(model.block, work).kept().count());
  const Bytes budget = profile.resident + Bytes(plain.peak * 2 / 3);
  const auto plan = refrain::plan(profile, budget);
  EXPECT_LE(plan.predicted_peak(), budget);
  EXPECT_GT(plan.overhead(), 0);
  EXPECT_LT(plan.overhead(), 0.25);
}

TEST(ChainOf, CutIntoEqualSegmentsIsNoBetterThanThePlan) {
  const auto model = preset("gpt2-large");
  const auto chain = chain_of(model, {.batch = 8, .sequence = 1024});
  const refrain::planner::Frontier frontier(chain);
  for (const std::int64_t interval : {1, 5, 6, 36}) {
    const auto uniform = refrain::simulate(cut_blocks(model, interval), chain);
    const auto best = refrain::simulate(frontier.plan(uniform.peak), chain);
    EXPECT_LE(best.peak, uniform.peak);
    EXPECT_LE(best.seconds, uniform.seconds * (1 + 1e-12));
  }
}

TEST(CutBlocks, LeavesTheLastSegmentTheEmbeddingAndTheHeadPlain) {
  auto model = preset("gpt2");
  model.blocks = 5;
  EXPECT_EQ(to_string(cut_blocks(model, 2)), "[0,1) [1,3)* [3,5)* [5,7)");
  EXPECT_EQ(to_string(cut_blocks(model, 1)), "[0,1) [1,2)* [2,3)* [3,4)* [4,5)* [5,7)");
  EXPECT_EQ(to_string(cut_blocks(model, 5)), "[0,1) [1,7)");
  EXPECT_THROW((void)cut_blocks(model, 6), OptionError);
}

}  // namespace
