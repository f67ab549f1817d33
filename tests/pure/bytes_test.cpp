// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/bytes.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace {

using refrain::Bytes;
using namespace refrain::literals;

TEST(Bytes, HaveBinaryUnitsAsLiterals) {
  static_assert(7_B == Bytes(7));
  static_assert(1_KiB == 1024_B && 1_MiB == 1024_KiB && 1_GiB == 1024_MiB);
  EXPECT_EQ((6_GiB).count(), 6442450944);
}

TEST(Bytes, AreNeverMadeFromABareNumberUnasked) {
  static_assert(!std::convertible_to<int, Bytes>);
  static_assert(!std::convertible_to<Bytes, std::int64_t>);
  static_assert(!std::is_constructible_v<Bytes, double>);
}

TEST(Bytes, AddSubtractScaleAndCompare) {
  static_assert(1_KiB + 1_B == 1025_B);
  static_assert(1_KiB - 2_KiB == -1_KiB);
  static_assert(3 * 2_MiB == 6_MiB && 2_MiB * 3U == 6_MiB && 7_B / 2 == 3_B);
  static_assert(1_MiB > 1023_KiB && Bytes() == 0_B);
  Bytes sum = 1_KiB;
  sum += 1_KiB;
  sum -= 1_B;
  EXPECT_EQ(sum, 2047_B);
}

TEST(Bytes, DividedByBytesAreARatio) { EXPECT_DOUBLE_EQ(1_GiB / 4_GiB, 0.25); }

TEST(Bytes, PrintInTheLargestUnitThatFits) {
  EXPECT_EQ(fmt::format("{}", 0_B), "0 B");
  EXPECT_EQ(fmt::format("{}", 1023_B), "1023 B");
  EXPECT_EQ(fmt::format("{}", 1_KiB), "1.00 KiB");
  EXPECT_EQ(fmt::format("{}", 1536_MiB), "1.50 GiB");
  EXPECT_EQ(fmt::format("{}", -3_KiB), "-3.00 KiB");
  EXPECT_EQ(fmt::format("{}", Bytes(std::numeric_limits<std::int64_t>::max())), "8.00 EiB");
}

TEST(Bytes, NeverPrintAThousandAndTwentyFourOfAUnit) {
  EXPECT_EQ(fmt::format("{}", 1_MiB - 1_B), "1.00 MiB");
  EXPECT_EQ(fmt::format("{}", 1_MiB - 6_B), "1023.99 KiB");
}

TEST(Bytes, AlignLikeText) {
  EXPECT_EQ(fmt::format("[{:>9}] [{:<7}]", 6_GiB, 5_B), "[ 6.00 GiB] [5 B    ]");
}

TEST(BytesFrom, ReadsWhatPeopleWrite) {
  using refrain::Bytes;
  using refrain::bytes_from;
  EXPECT_EQ(bytes_from("512"), Bytes(512));
  EXPECT_EQ(bytes_from("512B"), Bytes(512));
  EXPECT_EQ(bytes_from("64KiB"), Bytes(65536));
  EXPECT_EQ(bytes_from("1.5 GiB"), Bytes(1610612736));
  EXPECT_EQ(bytes_from("80GB"), Bytes(80000000000));
  EXPECT_EQ(bytes_from("2TB"), Bytes(2000000000000));
}

TEST(BytesFrom, RefusesAnythingElse) {
  for (const char* text : {"", "GiB", "12Gi", "3G", "5iB", "-1", "7 XiB", "1e30", "nan", "1MiB2"})
    EXPECT_FALSE(refrain::bytes_from(text).has_value()) << text;
}

}  // namespace
