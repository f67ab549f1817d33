// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace support {

/// Every test starts from the same random stream.
class Seeded : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(20); }
};

}  // namespace support
