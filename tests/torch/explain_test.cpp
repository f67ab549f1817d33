// SPDX-License-Identifier: BSD-3-Clause
#include "support/modules.hpp"
#include "support/seeded.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/explain.hpp>
#include <refrain/memory.hpp>

#include <torch/torch.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

namespace nn = torch::nn;
using refrain::explain_saved;
using refrain::SavedReport;
using Kind = refrain::SavedTensor::Kind;
using torch::Tensor;

class Explained : public support::Seeded {
 protected:
  /// "aten::sin activation float32[3]", one for each tensor.
  static std::vector<std::string> lines(const SavedReport& report) {
    std::vector<std::string> text;
    for (const auto& saved : report.tensors) {
      text.push_back(fmt::format(
          "{} {} {}{}{}", saved.op, to_string(saved.kind), saved.what,
          saved.name.empty() ? "" : " " + saved.name,
          saved.shared_with < 0 ? std::string() : fmt::format(" as {}", saved.shared_with)));
    }
    return text;
  }
};

TEST_F(Explained, EachTensorByOperatorAndKind) {
  const auto weight = torch::randn({4}).requires_grad_();
  const auto mask = torch::ones({4});
  const auto report = explain_saved(
      [&](const Tensor& x) {
        const auto y = (x * weight).exp();
        return (y * mask).sin() + y;
      },
      torch::randn({4}).requires_grad_());
  EXPECT_THAT(lines(report), testing::UnorderedElementsAre(
                                 "aten::mul input float32[4]", "aten::mul parameter float32[4]",
                                 "aten::exp activation float32[4]", "aten::mul captured float32[4]",
                                 "aten::sin activation float32[4]"));
  EXPECT_EQ(report.kept, refrain::Bytes(2 * 16));
}

TEST_F(Explained, ParametersOfAModuleAreNamedAndSharedMemoryIsTold) {
  nn::Linear linear(4, 4);
  const auto x = torch::randn({2, 4}).requires_grad_();
  EXPECT_THAT(lines(explain_saved(linear, x)),
              testing::UnorderedElementsAre("aten::addmm input float32[2, 4]",
                                            "aten::addmm parameter float32[4, 4] weight"));
  const auto twice = explain_saved([](const Tensor& t) { return t.sin() * t.cos(); }, x);
  EXPECT_EQ(twice.tensors[0].shared_with, -1);
  EXPECT_EQ(twice.tensors[1].shared_with, 0);
  EXPECT_EQ(twice.kept, refrain::Bytes(2 * 32));
}

TEST_F(Explained, ARegionShowsItsInputs) {
  auto block = refrain::checkpoint([](const Tensor& t) { return t.sin().exp().tanh(); });
  const auto report = explain_saved([&](const Tensor& t) { return block(t.cos()).sin(); },
                                    torch::randn({2, 4}).requires_grad_());
  EXPECT_EQ(report.kept, refrain::Bytes(2 * 32));  // the region's input and its result
}

TEST_F(Explained, LeavesNothingBehind) {
  const auto before = refrain::memory().live;
  {
    nn::Linear linear(4, 4);
    const auto report = explain_saved(linear, torch::randn({2, 4}).requires_grad_());
    EXPECT_THAT(fmt::format("{}", report), testing::HasSubstr("parameter weight"));
    EXPECT_FALSE(linear->weight.grad().defined());
  }
  EXPECT_EQ(refrain::memory().live, before);
}

}  // namespace
