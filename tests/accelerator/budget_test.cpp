// SPDX-License-Identifier: BSD-3-Clause
#include "support/on_accelerator.hpp"
#include <refrain/fit.hpp>
#include <refrain/memory.hpp>
#include <refrain/plan.hpp>
#include <refrain/profiler.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace {

using refrain::Bytes;
using support::fake_device;
using torch::Tensor;
using DeviceStage = std::function<Tensor(Tensor)>;

class BudgetOnAccelerator : public support::OnAcceleratorInEachMode {
 protected:
  static std::vector<DeviceStage> stages(std::vector<Tensor>* weights) {
    std::vector<DeviceStage> stages;
    for (int i = 0; i < 6; ++i) {
      weights->push_back(leaf(0, {32, 32}));
      stages.emplace_back([weight = weights->back()](const Tensor& x) {
        return (x.mm(weight).tanh() * 0.5).mm(weight).sigmoid();
      });
    }
    return stages;
  }
};

INSTANTIATE_TEST_SUITE_P(Fake, BudgetOnAccelerator, support::kEachMode, support::mode_name);

TEST_P(BudgetOnAccelerator, IsKeptAndPredicted) {
  std::vector<Tensor> weights;
  const auto layers = stages(&weights);
  const auto x = leaf(0, {64, 32});
  const auto options = refrain::ProfileOptions().repeats(2).seconds(0);
  const auto profile = refrain::profile(options, layers, x);
  EXPECT_EQ(profile.device, fake_device(0).str());
  const refrain::planner::Frontier frontier(profile.chain);
  ASSERT_GT(frontier.points().size(), 2U);
  for (const auto& point : frontier.points()) {
    const Bytes budget = profile.resident + profile.slack + Bytes(point.peak);
    auto fitted = refrain::fit(options, layers, budget, x);
    EXPECT_LE(fitted.measured_peak(), budget);
    EXPECT_NEAR(static_cast<double>(fitted.measured_peak().count()),
                static_cast<double>(fitted.plan().predicted_peak().count()), 1024)
        << to_string(fitted.cut());
  }
}

}  // namespace
