// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/oracles.hpp"
#include <refrain/plan.hpp>
#include <refrain/plan_file.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>

namespace {

using refrain::Bytes;
using refrain::Plan;
using refrain::Profile;
using refrain::Signature;

/// The first uneven chain of the oracle file, as two layers a stage.
Profile profile() {
  const nlohmann::json chain = support::oracle("planner.json")["heterogeneous"][0];
  Profile profile;
  profile.chain = support::Additive::of(chain, true).chain();
  for (refrain::StageCost& stage : profile.chain.stages) stage.options.push_back(stage.plain);
  profile.keeps = {"keep_matmuls()"};
  profile.chain.stages[1].name = "Block \"one\"";
  profile.chain.loss = 0.1;
  profile.resident = Bytes(1000);
  profile.executor = refrain::Executor::Flat;
  for (std::int64_t i = 0; i < profile.chain.size(); ++i) {
    profile.layers.push_back({2 * i, 2 * i + 2});
    for (int k = 0; k < 2; ++k)
      profile.signature.layers.push_back({std::to_string(2 * i + k), "Block", {"w float32[2, 3]"}});
  }
  profile.signature.inputs = {"int64[4, 8]"};
  profile.signature.device = "cpu";
  profile.signature.libtorch = "2.11.0";
  return profile;
}

TEST(PlanFile, GivesBackWhatWasWritten) {
  const Plan plan = refrain::plan(profile(), Bytes(1160));
  EXPECT_EQ(refrain::plan_from_text(to_file_text(plan), plan.profile().signature), plan);
  EXPECT_EQ(refrain::profile_from_text(to_file_text(plan.profile())), plan.profile());
  const auto path = (std::filesystem::temp_directory_path() / "refrain_plan_test.json").string();
  refrain::save_plan(plan, path);
  EXPECT_EQ(refrain::load_plan(path, plan.profile().signature), plan);
  std::remove(path.c_str());
}

TEST(PlanFile, NamesTheFirstDifferenceOfAnotherModel) {
  const std::string text = to_file_text(refrain::plan(profile(), Bytes(1160)));
  const auto says = [&text](const char* what, auto change) {
    Signature other = profile().signature;
    change(other);
    EXPECT_NE(refrain::hash_of(other), refrain::hash_of(profile().signature)) << what;
    support::expect_says<refrain::PlanError>({"made for another model", what},
                                             [&] { (void)refrain::plan_from_text(text, other); });
  };
  says("layers: 10 then, 9 now", [](Signature& s) { s.layers.pop_back(); });
  says("layer 3: Block then, Other now", [](Signature& s) { s.layers[3].type = "Other"; });
  says("name of layer 3: 3 then, x now", [](Signature& s) { s.layers[3].name = "x"; });
  says("layer 4, tensor 0: w float32[2, 3] then, w float32[2, 4] now",
       [](Signature& s) { s.layers[4].tensors[0] = "w float32[2, 4]"; });
  says("layer 4, tensor 1: none then, b float32[3] now",
       [](Signature& s) { s.layers[4].tensors.emplace_back("b float32[3]"); });
  says("input 0: int64[4, 8] then, int64[4, 9] now",
       [](Signature& s) { s.inputs[0] = "int64[4, 9]"; });
  says("device: cpu then, cuda now", [](Signature& s) { s.device = "cuda"; });
  says("LibTorch: 2.11.0 then, 2.15.0 now", [](Signature& s) { s.libtorch = "2.15.0"; });
}

TEST(PlanFile, RefusesWhatIsNoPlan) {
  using refrain::PlanError;
  const std::string text = to_file_text(refrain::plan(profile(), Bytes(1160)));
  support::expect_says<PlanError>({"this is no plan"}, [] { (void)refrain::plan_from_text("{"); });
  support::expect_says<PlanError>({"this is no plan"},
                                  [] { (void)refrain::plan_from_text("[1]"); });
  support::expect_says<PlanError>({"this is no plan", "not found"}, [] {
    (void)refrain::plan_from_text(refrain::to_file_text(profile()));
  });
  support::expect_says<PlanError>({"of format 7, known is 1"}, [&] {
    nlohmann::json json = nlohmann::json::parse(text);
    json["format"] = 7;
    (void)refrain::plan_from_text(json.dump());
  });
  support::expect_says<PlanError>({"segments must cover"}, [&] {
    nlohmann::json json = nlohmann::json::parse(text);
    json["stages"].erase(0);
    (void)refrain::plan_from_text(json.dump());
  });
  support::expect_says<PlanError>({"cannot have been measured"}, [&] {
    nlohmann::json json = nlohmann::json::parse(text);
    json["profile"]["layers"].erase(0);
    (void)refrain::plan_from_text(json.dump());
  });
  const auto with = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json json = nlohmann::json::parse(text);
    json["profile"]["chain"]["stages"][1]["plain"][field] = value;
    support::expect_says<PlanError>({"cannot have been measured"},
                                    [&] { (void)refrain::plan_from_text(json.dump()); });
  };
  with("saved", -1);
  with("saved", std::int64_t{1} << 60);
  with("forward", 1e300);
  support::expect_says<PlanError>({"nested deeper than 1000"}, [] {
    (void)refrain::plan_from_text(std::string(5000, '[') + std::string(5000, ']'));
  });
  support::expect_says<PlanError>({"cannot read /nowhere/plan.json"}, [] {
    (void)refrain::load_plan("/nowhere/plan.json", Signature());
  });
  support::expect_says<PlanError>({"cannot write /nowhere/plan.json"}, [] {
    refrain::save_plan(refrain::plan(profile(), Bytes(1160)), "/nowhere/plan.json");
  });
}

}  // namespace
