// SPDX-License-Identifier: BSD-3-Clause
#include "support/ledgers.hpp"
#include "support/messages.hpp"
#include <refrain/ledger.hpp>
#include <refrain/ledger_diff.hpp>
#include <refrain/ledger_file.hpp>
#include <refrain/ledger_text.hpp>
#include <refrain/ledger_totals.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

using refrain::Bytes;
using refrain::KeptMemory;
using refrain::Ledger;
using refrain::Phase;
using testing::HasSubstr;
using testing::Not;

TEST(Ledger, NamesWhatAStepDoesAtEachMoment) {
  const Ledger ledger = support::two_regions();
  const auto phase = [&](double moment) { return ledger.at(moment).phase; };
  EXPECT_EQ(phase(0.5), Phase::Forward);
  EXPECT_EQ(phase(1.5), Phase::Region);
  EXPECT_EQ(phase(4.0), Phase::Loss);
  EXPECT_EQ(phase(6.5), Phase::Backward);
  EXPECT_EQ(phase(7.5), Phase::Replay);
  EXPECT_EQ(phase(8.5), Phase::Backward);
  EXPECT_EQ(phase(13.0), Phase::Rest);
  EXPECT_EQ(ledger.at(1.5).call, 0);
  EXPECT_EQ(ledger.at(7.5).call, 1);
  EXPECT_EQ(ledger.at(6.5).call, -1) << "before any replay";
  EXPECT_EQ(ledger.at(8.5).call, 1) << "what b has rebuilt";
}

TEST(Ledger, NamesTheInnerOfTwoNestedRegions) {
  Ledger ledger = support::two_regions();
  ledger.calls[0].first_run = {1, 3};
  ledger.calls[1].inside = 0;
  EXPECT_EQ(ledger.at(2.5).call, 1);
  EXPECT_EQ(ledger.at(1.5).call, 0);
}

TEST(Ledger, OfSeveralBackwardPassesTheOneBeforeAnyRegionIsForward) {
  Ledger ledger = support::two_regions();
  ledger.backward_passes = {{1.6, 1.8}, {6, 12}};
  EXPECT_EQ(ledger.at(0.5).phase, Phase::Forward);
  EXPECT_EQ(ledger.at(4.0).phase, Phase::Loss);
}

TEST(Ledger, FindsThePeakAndItsOwner) {
  const auto peak = support::two_regions().peak();
  ASSERT_TRUE(peak);
  EXPECT_EQ(peak->live, Bytes(500));
  EXPECT_EQ(peak->seconds, 10.5);
  EXPECT_EQ(peak->phase, Phase::Backward);
  EXPECT_EQ(peak->call, 0);
}

TEST(Ledger, HasNoPeakWhereNobodyMeasured) {
  Ledger ledger = support::two_regions();
  ledger.timeline.clear();
  EXPECT_FALSE(ledger.peak());
  EXPECT_THAT(to_string(ledger), Not(HasSubstr("peak")));
}

TEST(Ledger, TellsItsRegionsInATable) {
  const std::string text = to_string(support::two_regions());
  EXPECT_THAT(text, HasSubstr("500 B at its peak on cpu, at 10500.00 ms, in the backward pass, "
                              "after the replay of `a`"));
  EXPECT_THAT(text, HasSubstr("input 10 B"));
  EXPECT_THAT(text, HasSubstr("when backward began 150 B more lived than when the step did"));
}

TEST(Ledger, CountsSharedMemoryOnce) {
  auto call = support::region_call("a", 0, 1);
  call.kept.push_back({KeptMemory::Why::Input, "argument 1", Bytes(7), "", true});
  call.kept.push_back({KeptMemory::Why::Output, "", Bytes(10), "`b`, its argument 0", true});
  call.kept.push_back({KeptMemory::Why::Operator, "aten::mm, float32[5]", Bytes(20), "", false});
  EXPECT_EQ(call.keeps(), Bytes(30));
  EXPECT_EQ(call.kept_for(KeptMemory::Why::Input), Bytes(10));
}

TEST(Ledger, AddsUpTheCallsOfARegion) {
  Ledger ledger = support::two_regions();
  ledger.calls.push_back(support::region_call("a", 3, 11));
  const auto totals = refrain::totals(ledger);
  ASSERT_EQ(totals.size(), 2U);
  EXPECT_EQ(totals[0].region, "a");
  EXPECT_EQ(totals[0].calls, 2);
  EXPECT_EQ(totals[0].forgotten, Bytes(200));
  EXPECT_EQ(totals[0].replays, 2);
  EXPECT_EQ(totals[0].rebuilt_peak, Bytes(100)) << "of one call at a time";
  EXPECT_DOUBLE_EQ(totals[0].replay_seconds, 2.0);
}

TEST(Ledger, WritesARowACall) {
  Ledger ledger = support::two_regions();
  ledger.calls[1].region = "layers[0,\"4\")";
  const std::string csv = to_csv(ledger);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_THAT(csv, HasSubstr("\na,0,-1,1.000000000,1.000000000,3,110,100,10,0,0,0,0,0,0,1,1,"));
  EXPECT_THAT(csv, HasSubstr("\n\"layers[0,\"\"4\"\")\","));
}

TEST(Ledger, ComesBackFromAFile) {
  Ledger ledger = support::two_regions();
  ledger.calls[1].inside = 0;
  ledger.calls[1].draws = true;
  ledger.calls[0].kept.push_back({KeptMemory::Why::Held, "", Bytes(3), "the caller \"x\"", false});
  EXPECT_EQ(refrain::ledger_from_text(to_file_text(ledger)), ledger);
}

TEST(Ledger, RefusesOtherFiles) {
  using support::message_of;
  EXPECT_THAT(message_of<refrain::Error>([] { (void)refrain::ledger_from_text("{}"); }),
              HasSubstr("this is no ledger."));
  Ledger ledger = support::two_regions();
  ledger.calls[0].inside = 1;
  EXPECT_THAT(
      message_of<refrain::Error>([&] { (void)refrain::ledger_from_text(to_file_text(ledger)); }),
      HasSubstr("call 0 lies inside call 1"));
  EXPECT_THAT(message_of<refrain::Error>([] { refrain::save_ledger({}, "/nowhere/at/all.json"); }),
              HasSubstr("cannot write /nowhere/at/all.json"));
}

TEST(Ledger, WritesATraceThatPerfettoOpens) {
  const auto trace = nlohmann::json::parse(to_trace(support::two_regions()));
  std::vector<std::string> bars;
  std::size_t counters = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "C") {
      ++counters;
      EXPECT_TRUE(event.at("args").at("live").is_number());
    } else {
      EXPECT_EQ(event.at("ph"), "X");
      EXPECT_GE(event.at("dur").get<double>(), 0);
      bars.push_back(event.at("name"));
    }
  }
  EXPECT_EQ(counters, support::two_regions().timeline.size());
  EXPECT_THAT(bars,
              testing::ElementsAre("step", "backward", "a", "replay of a", "b", "replay of b"));
}

TEST(LedgerDiff, IsEmptyForEqualSteps) {
  Ledger slower = support::two_regions();
  slower.seconds = 20;
  slower.calls[0].replays[0].time.end += 0.5;
  const auto diff = refrain::diff(support::two_regions(), slower);
  EXPECT_TRUE(diff.empty());
  EXPECT_DOUBLE_EQ(diff.seconds, 6);
  EXPECT_DOUBLE_EQ(diff.replay_seconds, 0.5);
  EXPECT_THAT(to_string(diff), HasSubstr("no region changed in more than time"));
}

TEST(LedgerDiff, TellsWhatChanged) {
  Ledger after = support::two_regions();
  after.calls[0].forgotten = Bytes(40);
  after.calls[1].region = "c";
  after.timeline[8].live = Bytes(620);
  const auto diff = refrain::diff(support::two_regions(), after);
  ASSERT_TRUE(diff.peak);
  EXPECT_EQ(*diff.peak, Bytes(120));
  const std::string text = to_string(diff);
  EXPECT_THAT(text, HasSubstr("peak +120 B"));
  EXPECT_THAT(text, HasSubstr("100 B -> 40 B"));
  EXPECT_THAT(text, HasSubstr("1 -> 0"));
  EXPECT_THAT(text, HasSubstr("0 -> 1"));
}

TEST(LedgerDiff, ComparesNoPeaksThatWereMeasuredOtherwise) {
  Ledger part = support::two_regions();
  part.whole = false;
  EXPECT_FALSE(refrain::diff(support::two_regions(), part).peak);
}

}  // namespace
