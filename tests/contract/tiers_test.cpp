// SPDX-License-Identifier: BSD-3-Clause
#include "tier_contract.hpp"
#include <refrain/bytes.hpp>
#include <refrain/tier/arena.hpp>
#include <refrain/tier/checked.hpp>
#include <refrain/tier/counted.hpp>
#include <refrain/tier/disk.hpp>
#include <refrain/tier/host.hpp>
#include <refrain/tier/limited.hpp>
#include <refrain/tier/some.hpp>

#include <gtest/gtest.h>

#include <filesystem>

namespace {

using refrain::AnyTier;
using refrain::Bytes;
namespace tier = refrain::tier;

constexpr Bytes kEnough{16 << 20};

std::string scratch() { return std::filesystem::temp_directory_path().string(); }

struct Host {
  static constexpr bool kFrees = false;
  static AnyTier make() { return tier::host(); }
};
struct Arena {
  static constexpr bool kFrees = true;
  static AnyTier make() { return tier::arena(kEnough); }
};
struct Disk {
  static constexpr bool kFrees = true;
  static AnyTier make() { return tier::disk(scratch()); }
};
struct Counted {
  static constexpr bool kFrees = true;
  static AnyTier make() { return tier::counted(tier::arena(kEnough)); }
};
struct Checked {
  static constexpr bool kFrees = true;
  static AnyTier make() { return tier::checked(tier::disk(scratch())); }
};
/// Some in the first, some beyond it.
struct Limited {
  static constexpr bool kFrees = true;
  static AnyTier make() {
    return tier::limited(tier::arena(kEnough), Bytes(300000), tier::disk(scratch()));
  }
};
struct AtLeast {
  static constexpr bool kFrees = true;
  static AnyTier make() { return tier::at_least(tier::arena(kEnough), Bytes(1)); }
};

using Tiers = testing::Types<Host, Arena, Disk, Counted, Checked, Limited, AtLeast>;
INSTANTIATE_TYPED_TEST_SUITE_P(Of, TierContract, Tiers);

}  // namespace
