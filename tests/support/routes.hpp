// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/checkpoint.hpp>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>

namespace refrain {

inline void PrintTo(Route route, std::ostream* out) {
  *out << (route == Route::Hooks ? "Hooks" : "Function");
}

}  // namespace refrain

namespace support {

/// For what either way into autograd must do. A test file derives a class of its own and says
/// `INSTANTIATE_TEST_SUITE_P(Routes, ThatClass, support::kBothRoutes, support::route_name);`
class OnBothRoutes : public testing::TestWithParam<refrain::Route> {
 protected:
  void SetUp() override { torch::manual_seed(20); }

  [[nodiscard]] refrain::CheckpointOptions options() const {
    return refrain::CheckpointOptions().route(GetParam());
  }

  template <class Thing>
  [[nodiscard]] auto quiet(Thing thing) const {
    return refrain::checkpoint(std::move(thing), options());
  }
};

inline const auto kBothRoutes = testing::Values(refrain::Route::Hooks, refrain::Route::Function);

inline std::string route_name(const testing::TestParamInfo<refrain::Route>& info) {
  return testing::PrintToString(info.param);
}

}  // namespace support
