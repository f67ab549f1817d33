// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/error.hpp>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace {

using refrain::Error;

TEST(Error, NamesTheLibraryThenIndentsEachFurtherLine) {
  const Error error("replay saved 11 tensors.", "likely cause: a counter.", "see the docs.");
  EXPECT_STREQ(error.what(),
               "refrain: replay saved 11 tensors.\n  likely cause: a counter.\n  see the docs.");
}

TEST(Error, TakesWhateverConvertsToText) {
  const std::string owned = "b";
  EXPECT_STREQ(Error("a", owned, std::string_view("c")).what(), "refrain: a\n  b\n  c");
}

TEST(Error, LeavesOutEmptyLines) {
  EXPECT_STREQ(Error("a", "", std::string(), "b").what(), "refrain: a\n  b");
}

TEST(Error, DoesNotNameTheLibraryTwice) { EXPECT_STREQ(Error("refrain: a").what(), "refrain: a"); }

TEST(Error, IsCaughtAsARuntimeErrorWhateverItsKind) {
  const auto caught = []<class Kind>(std::type_identity<Kind>) {
    try {
      throw Kind("a", "b");
    } catch (const std::runtime_error& error) {
      return dynamic_cast<const Error*>(&error) != nullptr &&
             error.what() == std::string("refrain: a\n  b");
    }
  };
  EXPECT_TRUE(caught(std::type_identity<refrain::DivergenceError>{}));
  EXPECT_TRUE(caught(std::type_identity<refrain::BudgetError>{}));
  EXPECT_TRUE(caught(std::type_identity<refrain::TierError>{}));
  EXPECT_TRUE(caught(std::type_identity<refrain::PlanError>{}));
  EXPECT_TRUE(caught(std::type_identity<refrain::OptionError>{}));
}

}  // namespace
