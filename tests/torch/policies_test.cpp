// SPDX-License-Identifier: BSD-3-Clause
#include "support/modules.hpp"
#include "support/routes.hpp"
#include <refrain/checkpoint_sequential.hpp>

#include <torch/torch.h>

#include <fmt/format.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace {

using support::Mlp;
using torch::Tensor;
namespace nn = torch::nn;
namespace policy = refrain::policy;
using policy::LastSegment;

class Policies : public support::OnBothRoutes {
 protected:
  /// How often each of `count` layers runs in one step.
  std::vector<int> runs(int count, const policy::AnyPolicy& how) const {
    std::vector<Mlp> layers;
    for (int i = 0; i < count; ++i) layers.emplace_back(4);
    auto stack = refrain::checkpoint(layers, how, options());
    stack(torch::randn({2, 4}).requires_grad_()).sum().backward();
    std::vector<int> runs;
    for (const auto& layer : layers) runs.push_back(layer->runs);
    return runs;
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, Policies, support::kBothRoutes, support::route_name);

using Runs = std::vector<int>;

TEST_P(Policies, RunEachStageAsOftenAsTheirCutSays) {
  EXPECT_EQ(runs(5, policy::none()), (Runs{1, 1, 1, 1, 1}));
  EXPECT_EQ(runs(5, policy::all()), (Runs{2, 2, 2, 2, 1}));
  EXPECT_EQ(runs(5, policy::every(2)), (Runs{2, 2, 2, 2, 1}));
  EXPECT_EQ(runs(5, policy::one_in(2)), (Runs{2, 1, 2, 1, 1}));
  EXPECT_EQ(runs(5, policy::first(2)), (Runs{2, 2, 1, 1, 1}));
  EXPECT_EQ(runs(5, policy::segments(2)), (Runs{2, 2, 2, 1, 1}));
  EXPECT_EQ(runs(5, policy::sqrt_n()), (Runs{2, 2, 2, 1, 1}));
}

TEST_P(Policies, ReplayTheLastSegmentOnRequest) {
  EXPECT_EQ(runs(3, policy::all(LastSegment::Replay)), (Runs{2, 2, 2}));
  EXPECT_EQ(runs(3, policy::segments(1, LastSegment::Replay)), (Runs{2, 2, 2}));
}

TEST_P(Policies, BinaryRunsWhatRecursiveHalvingRuns) {
  EXPECT_EQ(runs(8, policy::binary()), (Runs{4, 3, 3, 2, 3, 2, 2, 1}));
  const Runs many = runs(32, policy::binary());
  EXPECT_EQ(std::accumulate(many.begin(), many.end(), 0), 32 + 80);
}

TEST_P(Policies, OfYourOwnAreHeard) {
  struct Odd {
    refrain::Segmentation cut(const refrain::Chain& chain) const {
      return policy::replay_where(chain, [](std::int64_t i) { return i % 2 == 1; });
    }
    std::string describe() const { return "odd()"; }
  };
  EXPECT_EQ(runs(5, Odd{}), (Runs{1, 2, 1, 2, 1}));
}

TEST_P(Policies, ByTypeAndByNameFindTheModulesOfASequential) {
  nn::Sequential layers({{"in", nn::AnyModule(nn::Linear(4, 4))},
                         {"mlp", nn::AnyModule(Mlp(4))},
                         {"act", nn::AnyModule(nn::Tanh())},
                         {"out", nn::AnyModule(Mlp(4))}});
  const auto runs_of = [&](const policy::AnyPolicy& how) {
    layers->at<support::MlpImpl>(1).runs = layers->at<support::MlpImpl>(3).runs = 0;
    refrain::checkpoint(layers, how, options())(torch::randn({2, 4})).sum().backward();
    return Runs{layers->at<support::MlpImpl>(1).runs, layers->at<support::MlpImpl>(3).runs};
  };
  EXPECT_EQ(runs_of(policy::only<Mlp>()), (Runs{2, 2}));
  EXPECT_EQ(runs_of(policy::only<nn::Linear>()), (Runs{1, 1}));
  EXPECT_EQ(runs_of(policy::matching("ml?")), (Runs{2, 1}));
}

}  // namespace
