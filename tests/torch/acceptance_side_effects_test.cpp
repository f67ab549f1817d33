// SPDX-License-Identifier: BSD-3-Clause
// K4: code inside a region can tell a replay from the first run. A08 and its siblings.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include <refrain/replay.hpp>

#include <thread>
#include <vector>

namespace {

using torch::Tensor;

class SideEffects : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, SideEffects, support::kBothRoutes, support::route_name);

TEST_P(SideEffects, A08_ALogIsFedOnce) {
  int logged = 0;
  auto region = quiet([&logged](Tensor t) {
    if (!refrain::replaying()) ++logged;
    return t.sin().exp();
  });
  region(torch::randn({3}).requires_grad_()).sum().backward();
  EXPECT_EQ(logged, 1);
}

TEST_P(SideEffects, A08_ReplayingIsFalseOutsideAndInTheFirstRun) {
  std::vector<bool> seen;
  EXPECT_FALSE(refrain::replaying());
  auto region = quiet([&seen](Tensor t) {
    seen.push_back(refrain::replaying());
    return t.sin().exp();
  });
  const auto y = region(torch::randn({3}).requires_grad_());
  EXPECT_FALSE(refrain::replaying());
  y.sum().backward();
  EXPECT_FALSE(refrain::replaying());
  EXPECT_EQ(seen, (std::vector<bool>{false, true}));
}

TEST_P(SideEffects, A08_ReplayingIsFalseOnOtherThreads) {
  bool elsewhere = true;
  bool here = false;
  auto region = quiet([&](Tensor t) {
    if (refrain::replaying()) {
      here = true;
      std::thread([&elsewhere] { elsewhere = refrain::replaying(); }).join();
    }
    return t.sin().exp();
  });
  region(torch::randn({3}).requires_grad_()).sum().backward();
  EXPECT_TRUE(here);
  EXPECT_FALSE(elsewhere);
}

TEST_P(SideEffects, A08_ANestedRegionKnowsThatItsOuterOneIsReplayed) {
  int first = 0;
  int again = 0;
  auto inner = quiet([&](Tensor t) {
    ++(refrain::replaying() ? again : first);
    return t.sin().exp();
  });
  auto outer = quiet([&](Tensor t) { return inner(t.cos()).tan(); });
  outer(torch::randn({3}).requires_grad_()).sum().backward();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(again, 2) << "once as part of the outer replay, once for itself";
}

TEST_P(SideEffects, ReplayingIsTrueInARegionCalledPlainlyInsideAReplay) {
  std::vector<bool> seen;
  auto inner = quiet([&](Tensor t) {
    seen.push_back(refrain::replaying());
    return t.detach() * 2;
  });
  auto outer = quiet([&](Tensor t) {
    Tensor gate;
    {
      const torch::NoGradGuard no_grad;
      gate = inner(t);
    }
    return (t * gate).sin();
  });
  outer(torch::randn({3}).requires_grad_()).sum().backward();
  ASSERT_GE(seen.size(), 2U);
  EXPECT_FALSE(seen.front());
  EXPECT_TRUE(seen.back());
}

TEST_P(SideEffects, CodeOutsideARegionDuringBackwardIsNotReplaying) {
  std::vector<bool> seen;
  const auto x = torch::randn({3}).requires_grad_();
  x.register_hook([&seen](Tensor) { seen.push_back(refrain::replaying()); });
  quiet([](Tensor t) { return t.sin().exp(); })(x).sum().backward();
  EXPECT_EQ(seen, std::vector<bool>{false});
}

}  // namespace
