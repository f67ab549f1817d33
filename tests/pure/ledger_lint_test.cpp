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
  ledger.calls[0].differentiable = false;
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
    if (op == "aten::linear") ledger.calls[0].saved_inputs = Bytes(110);
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
  head.timeline[3].live = Bytes(400);  // 300 more than at the beginning, when backward begins
  EXPECT_THAT(first_of(Rule::PeakOutside, head).what, HasSubstr("before any replay"));
}

TEST(LedgerLint, NamesAnOutputThatIsKeptTwice) {
  Ledger ledger = support::two_regions();
  ledger.calls[0].kept.push_back({Why::Output, "", Bytes(10), "other code", false});
  EXPECT_THAT(all_of(Rule::OutputKeptTwice, ledger), IsEmpty()) << "as large, not made of it";
  ledger.calls[1].kept[0].made_from = 0;
  const Finding finding = first_of(Rule::OutputKeptTwice, ledger);
  EXPECT_EQ(finding.region, "a");
  EXPECT_EQ(finding.bytes, Bytes(10));
  ledger.calls[0].kept.back().shared = true;
  EXPECT_THAT(all_of(Rule::OutputKeptTwice, ledger), IsEmpty()) << "the one that b begins with";
}

Ledger chain_of(int segments, int stages, std::int64_t forgotten) {
  Ledger ledger = support::two_regions();
  ledger.calls.clear();
  for (int i = 0; i < segments; ++i) {
    const std::string name =
        "layers[" + std::to_string(i * stages) + "," + std::to_string((i + 1) * stages) + ")";
    ledger.calls.push_back(support::region_call(name, 1, 7));
    ledger.calls.back().forgotten = Bytes(forgotten);
  }
  return ledger;
}

TEST(LedgerLint, NamesACutThatIsFarFromTheBest) {
  // 16 stages with the last, which is plain; each leaves as much as an input has, and that input.
  EXPECT_THAT(first_of(Rule::FarFromBestCut, chain_of(15, 1, 10)).cure,
              HasSubstr("policy::segments(4)"));
  EXPECT_THAT(all_of(Rule::FarFromBestCut, chain_of(15, 1, 160)), IsEmpty());
  EXPECT_THAT(first_of(Rule::FarFromBestCut, chain_of(2, 8, 320)).cure,
              HasSubstr("policy::segments("));
}

TEST(LedgerLint, CountsWholeStagesInACut) {
  const auto cut = refrain::detail::best_cut(chain_of(3, 2, 110));
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->stages, 8);
  EXPECT_EQ(cut->segments, 4);
  EXPECT_EQ(cut->best, 8) << "5, 6 and 7 segments still have one of two stages";
}

TEST(LedgerLint, KnowsNoBestCutOfSeveralForwardPasses) {
  Ledger ledger = chain_of(15, 1, 10);
  for (int i = 0; i < 15; ++i) {
    ledger.calls.push_back(ledger.calls[static_cast<std::size_t>(i)]);
    ledger.calls.back().number = 1;
  }
  EXPECT_THAT(all_of(Rule::FarFromBestCut, ledger), IsEmpty());
}

TEST(LedgerLint, MergesRegionsThatNoPolicyCut) {
  Ledger ledger = chain_of(15, 1, 10);
  for (std::size_t i = 0; i < ledger.calls.size(); ++i)
    ledger.calls[i].region = "block" + std::to_string(i);
  EXPECT_THAT(first_of(Rule::FarFromBestCut, ledger).cure, HasSubstr("put blocks"));
}

TEST(LedgerLint, ARetainedGraphKeepsUntilItsLastPass) {
  Ledger ledger = support::two_regions();
  ledger.timeline[8].live = Bytes(540);
  ledger.calls[0].replays[0].time = {6.2, 6.3};
  EXPECT_EQ(all_of(Rule::OnlyCosts, ledger).size(), 1U);
  ledger.calls[0].replays.push_back({{12, 12.5}, false, Bytes(100), 0});
  EXPECT_THAT(all_of(Rule::OnlyCosts, ledger), IsEmpty());
}

TEST(LedgerLint, SaysNothingOfARegionWhoseBodyAskedForItsReplay) {
  Ledger ledger = support::two_regions();
  ledger.timeline[8].live = Bytes(5000);
  for (auto& call : ledger.calls) call.replays[0].time = {call.first_run.begin + 0.5, 3};
  EXPECT_THAT(all_of(Rule::OnlyCosts, ledger), IsEmpty());
}

TEST(LedgerLint, OfTwoNestedRegionsOneAtMostOnlyCosts) {
  Ledger ledger = support::two_regions();
  ledger.timeline[8].live = Bytes(5000);
  ledger.calls[1].inside = 0;
  ledger.calls[1].first_run = {1.2, 1.8};
  EXPECT_EQ(all_of(Rule::OnlyCosts, ledger).size(), 1U);
}

TEST(LedgerLint, SaysNothingOfARegionThatThrew) {
  Ledger ledger = support::two_regions();
  ledger.calls[0] = {};
  ledger.calls[0].region = "a";
  ledger.calls[0].threw = true;
  EXPECT_THAT(refrain::lint(ledger), IsEmpty());
}

TEST(LedgerLint, SaysTheGravestFirst) {
  const std::vector<Finding> findings{{Rule::Attention, Severity::Note, "a", Bytes(0), "x.", "y."},
                                      {Rule::Diverges, Severity::Error, "", Bytes(0), "z.", "w."}};
  EXPECT_EQ(to_string(findings), "error: z.\n  w.\nnote: `a` x.\n  y.");
  EXPECT_TRUE(any_warning(findings));
  EXPECT_FALSE(refrain::any_warning({findings[0]}));
}

}  // namespace
