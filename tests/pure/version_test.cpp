// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/version.hpp>

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace {

TEST(Version, IsThreeNumbers) {
  EXPECT_TRUE(std::regex_match(std::string(refrain::kVersion), std::regex(R"(\d+\.\d+\.\d+)")));
}

}  // namespace
