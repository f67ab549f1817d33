// SPDX-License-Identifier: BSD-3-Clause
#include "support/ledgers.hpp"
#include <refrain/ledger_lint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

using refrain::Bytes;
using refrain::Finding;
using refrain::KeptMemory;
using refrain::Ledger;
using refrain::Rule;
using refrain::Severity;
using testing::HasSubstr;
using testing::IsEmpty;
using Why = KeptMemory::Why;

std::vector<Finding> all_of(Rule rule, const Ledger& ledger) {
  std::vector<Finding> found = refrain::lint(ledger);
  std::erase_if(found, [rule](const Finding& finding) { return finding.rule != rule; });
  return found;
}

/// The finding of a rule; one without words if there is none.
Finding first_of(Rule rule, const Ledger& ledger) {
  const auto found = all_of(rule, ledger);
  return found.empty() ? Finding() : found.front();
}

TEST(LedgerLint, HasNothingToSayOfRegionsThatLowerThePeak) {
  EXPECT_THAT(refrain::lint(support::two_regions()), IsEmpty());
  EXPECT_EQ(to_string(std::vector<Finding>()), "lint: nothing to say");
}

TEST(LedgerLint, NamesARegionThatSavesNothing) {
  Ledger ledger = support::two_regions();
  ledger.calls[0].tensors = 0;
  const Finding finding = first_of(Rule::NoGradient, ledger);
  EXPECT_EQ(finding.region, "a");
  EXPECT_EQ(finding.severity, Severity::Warning);
  EXPECT_THAT(all_of(Rule::SavesLittle, ledger), IsEmpty()) << "said once";
}

TEST(LedgerLint, NamesARegionThatForgetsLessThanAHundredth) {
  Ledger ledger = support::two_regions();
  ledger.calls[0].forgotten = Bytes(1);
  EXPECT_EQ(first_of(Rule::SavesLittle, ledger).region, "a");
  ledger.calls[0].forgotten = Bytes(2);
  EXPECT_THAT(all_of(Rule::SavesLittle, ledger), IsEmpty());
}

TEST(LedgerLint, SaysWhyARegionForgetsLittle) {
  const auto why = [](KeptMemory memory, const std::string& op) {
    Ledger ledger = support::two_regions();
    ledger.calls[0].forgotten = Bytes(0);
    ledger.calls[0].kept.push_back(std::move(memory));
    ledger.calls[0].savers = {{op, Bytes(110)}};
    return first_of(Rule::SavesLittle, ledger).what;
  };
  const KeptMemory none{Why::Buffer, "", Bytes(0), "", false};
  EXPECT_THAT(why(none, "aten::linear"), HasSubstr("its inputs and parameters"));
  EXPECT_THAT(why(none, "aten::scaled_dot_product_attention"), HasSubstr("computes the rest anew"));
  EXPECT_THAT(why({Why::Operator, "aten::mm", Bytes(100), "", false}, "aten::mm"),
              HasSubstr("its policy keeps"));
  EXPECT_THAT(why({Why::Held, "", Bytes(100), "the caller", false}, "aten::mm"),
              HasSubstr("held anyway, by the caller"));
  EXPECT_THAT(why({Why::Output, "", Bytes(100), "`b`, its argument 0", true}, "aten::mm"),
              HasSubstr("its output"));
}

TEST(LedgerLint, NamesAReplayThatRunsFusedAttentionAgain) {
  Ledger ledger = support::two_regions();
  ledger.calls[0].savers = {{"aten::scaled_dot_product_attention", Bytes(80)},
                            {"aten::linear", Bytes(30)}};
  EXPECT_EQ(first_of(Rule::Attention, ledger).bytes, Bytes(80));
  ledger.calls[0].kept.push_back(
      {Why::Operator, "aten::_scaled_dot_product_flash_attention_for_cpu", Bytes(8), "", false});
  EXPECT_THAT(all_of(Rule::Attention, ledger), IsEmpty()) << "it is kept";
}

TEST(LedgerLint, NamesRandomNumbersThatAReplayDrawsAnew) {
  Ledger ledger = support::two_regions();
  ledger.calls[1].draws = true;
  EXPECT_EQ(first_of(Rule::RandomNotReplayed, ledger).region, "b");
  ledger.calls[1].kept.push_back({Why::Random, "", Bytes(2504), "", false});
  EXPECT_THAT(all_of(Rule::RandomNotReplayed, ledger), IsEmpty());
}

TEST(LedgerLint, NamesARegionWithoutWhichThePeakWouldBeTheSame) {
  Ledger ledger = support::two_regions();
  ledger.timeline[8].live = Bytes(700);  // the peak, after the replay of a
  const auto found = all_of(Rule::OnlyCosts, ledger);
  ASSERT_EQ(found.size(), 2U) << "both, kept together";
  ledger.timeline[8].live = Bytes(600);
  EXPECT_EQ(all_of(Rule::OnlyCosts, ledger).size(), 1U) << "one of them, not both";
  ledger.timeline[8].live = Bytes(540);
  EXPECT_THAT(all_of(Rule::OnlyCosts, ledger), IsEmpty());
}

TEST(LedgerLint, SaysSoOfARegionOnlyIfItIsTrueOfAllItsCalls) {
  Ledger ledger = support::two_regions();
  ledger.timeline[8].live = Bytes(600);
  ledger.calls[1].region = "a";
  EXPECT_THAT(all_of(Rule::OnlyCosts, ledger), IsEmpty());
}

TEST(LedgerLint, NamesANestedRegionThatOnlyCosts) {
  Ledger ledger = support::two_regions();
  ledger.calls[1].inside = 0;
  ledger.calls[1].first_run = {1.2, 1.8};
  ledger.calls[0].replays[0].time = {6.6, 7.0};
  ledger.calls[0].forgotten = Bytes(1000);  // needed
  ledger.calls[1].replays[0].time = {7.5, 8};
  const Finding finding = first_of(Rule::OnlyCosts, ledger);
  EXPECT_EQ(finding.region, "b");
  EXPECT_THAT(finding.cure, HasSubstr("the region around it"));
}

TEST(LedgerLint, NamesAPeakOutsideAllRegions) {
  Ledger loss = support::two_regions();
  loss.timeline[3].live = Bytes(900);
  EXPECT_THAT(first_of(Rule::PeakOutside, loss).what, HasSubstr("the loss"));
  Ledger rest = support::two_regions();
  rest.timeline[10].live = Bytes(900);
  EXPECT_THAT(first_of(Rule::PeakOutside, rest).what, HasSubstr("the optimizer"));
  Ledger head = support::two_regions();
  head.timeline[4].live = Bytes(900);
  EXPECT_THAT(all_of(Rule::PeakOutside, head), IsEmpty()) << "the last layers, left plain";
  head.saved_outside = Bytes(300);
  EXPECT_THAT(first_of(Rule::PeakOutside, head).what, HasSubstr("before any replay"));
}

TEST(LedgerLint, NamesAnOutputThatIsKeptTwice) {
  Ledger ledger = support::two_regions();
  ledger.calls[0].kept.push_back(
      {Why::Output, "", Bytes(10), "autograd, outside all regions", true});
  const Finding finding = first_of(Rule::OutputKeptTwice, ledger);
  EXPECT_EQ(finding.region, "a");
  EXPECT_EQ(finding.bytes, Bytes(10));
  ledger.calls[0].kept.back().holder = "`b`, its argument 0";
  EXPECT_THAT(all_of(Rule::OutputKeptTwice, ledger), IsEmpty()) << "the one that b begins with";
}

TEST(LedgerLint, NamesACutThatIsFarFromTheBest) {
  Ledger ledger = support::two_regions();
  ledger.calls.clear();
  for (int i = 0; i < 16; ++i) {
    ledger.calls.push_back(support::region_call(
        "layers[" + std::to_string(i) + "," + std::to_string(i + 1) + ")", 1, 7));
    ledger.calls.back().forgotten = Bytes(10);  // as much as an input: the best is 4 segments
  }
  EXPECT_THAT(first_of(Rule::FarFromBestCut, ledger).cure, HasSubstr("policy::segments(4)"));
  for (auto& call : ledger.calls) call.forgotten = Bytes(160);
  EXPECT_THAT(all_of(Rule::FarFromBestCut, ledger), IsEmpty());
  ledger.calls.resize(2);
  ledger.calls[0].region = "layers[0,8)";
  ledger.calls[1].region = "layers[8,16)";
  for (auto& call : ledger.calls) call.forgotten = Bytes(320);
  EXPECT_THAT(first_of(Rule::FarFromBestCut, ledger).cure, HasSubstr("policy::segments(8)"));
  ledger.calls[0].region = ledger.calls[1].region = "block";
  EXPECT_THAT(all_of(Rule::FarFromBestCut, ledger), IsEmpty()) << "they cannot be cut further";
}

TEST(LedgerLint, SaysTheGravestFirst) {
  const std::vector<Finding> findings{{Rule::Attention, Severity::Note, "a", Bytes(0), "x.", "y."},
                                      {Rule::Diverges, Severity::Error, "", Bytes(0), "z.", "w."}};
  EXPECT_EQ(to_string(findings), "error: z.\n  w.\nnote: `a` x.\n  y.");
  EXPECT_TRUE(any_warning(findings));
  EXPECT_FALSE(refrain::any_warning({findings[0]}));
}

}  // namespace
