// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include "support/oracles.hpp"
#include <refrain/error.hpp>
#include <refrain/estimate/article.hpp>
#include <refrain/estimate/reported.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace {

namespace article = refrain::estimate::article;
using nlohmann::json;

const json& model() {
  static const json values = support::oracle("article_model.json");
  return values;
}

void expect_value(double expected, double got) {
  EXPECT_NEAR(got, expected, std::abs(expected) * 1e-12);
}

/// A value to full precision, and as it is printed.
void expect_printed(const json& expected, double got, int decimals) {
  expect_value(expected["value"], got);
  EXPECT_EQ(fmt::format("{:.{}f}", got, decimals), expected["printed"]);
}

article::LayerShape layer_of(const json& in) {
  return {in["batch"], in["seq_len"], in["d_model"],
          in["d_ffn"], in["n_heads"], in.value("dtype_bytes", std::int64_t{2})};
}

TEST(Article, LayersTakeWhatItPrints) {
  for (const json& row : model()["activation_memory_per_layer"]["cases"]) {
    const auto got = article::activation_memory_per_layer(layer_of(row["in"]));
    const json& out = row["out"];
    expect_printed(out["qkv_gb"], got.qkv, 2);
    expect_printed(out["attn_weights_gb"], got.attention_weights, 2);
    expect_printed(out["ffn_gb"], got.ffn, 2);
    expect_printed(out["residuals_gb"], got.residuals, 2);
    expect_printed(out["total_per_layer_gb"], got.total, 2);
    expect_printed(out["times_32_layers_gb"], 32 * got.total, 2);
    EXPECT_EQ(got.total * article::kGb, out["total_per_layer_bytes"]["value"].get<double>());
  }
}

TEST(Article, TrainingTakesWhatItPrints) {
  for (const json& row : model()["total_training_memory"]["cases"]) {
    const auto got = article::total_training_memory(row["in"]["n_layers"], layer_of(row["in"]));
    const json& out = row["out"];
    EXPECT_EQ(got.parameters, out["n_params"].get<std::int64_t>());
    expect_printed(out["n_params_b"], static_cast<double>(got.parameters) / 1e9, 2);
    expect_printed(out["params_gb"], got.parameters_gb, 2);
    expect_printed(out["optimizer_gb"], got.optimizer_gb, 2);
    expect_printed(out["activations_gb"], got.activations_gb, 2);
    expect_printed(out["total_gb"], got.total_gb, 2);
    EXPECT_EQ(got.total_gb <= article::kDeviceGb, row["fits_80_gb"].get<bool>());
  }
}

TEST(Article, IntervalsCostWhatItPrints) {
  const json& given = model()["simulate_memory_and_flops"];
  const double layer = given["in"]["activation_gb_per_layer"];
  const double fixed = given["in"]["fixed_gb"];
  const std::int64_t layers = given["in"]["n_layers"];
  const double all = fixed + article::simulate_memory_and_flops(layers, 1, layer).activation_gb;
  for (const json& row : given["rows"]) {
    const auto got = article::simulate_memory_and_flops(layers, row["checkpoint_every"], layer);
    const double total = fixed + got.activation_gb;
    expect_printed(row["activation_gb"], got.activation_gb, 2);
    expect_printed(row["total_gb"], total, 2);
    expect_printed(row["saved_pct"], (all - total) / all * 100, 1);
    expect_printed(row["extra_forward_pct"], got.extra_forward_pct, 1);
    expect_printed(row["extra_step_pct"], got.extra_step_pct, 1);
  }
}

TEST(Article, OddIntervalsFollowItsFormulas) {
  for (const json& row : model()["edge_cases"]["simulate_memory_and_flops"]) {
    const auto got =
        article::simulate_memory_and_flops(row["n_layers"], row["checkpoint_every"], 1);
    EXPECT_EQ(got.activation_gb, row["activation_in_layer_units"].get<double>()) << row;
    expect_value(row["extra_forward_pct"], got.extra_forward_pct);
    expect_value(row["extra_step_pct"], got.extra_step_pct);
  }
}

TEST(Article, FindsTheLargestBatches) {
  const json& given = model()["max_batch_for_ckpt"];
  const std::int64_t layers = given["in"]["n_layers"];
  const double layer = given["in"]["act_per_layer_b1"];
  const double fixed = given["in"]["fixed_gb"];
  for (const json& row : given["rows"]) {
    const std::int64_t interval = row["checkpoint_every"];
    const auto batch =
        article::max_batch_for_ckpt(layers, interval, layer, fixed, given["in"]["gpu_gb"]);
    EXPECT_EQ(batch, row["max_batch"].get<std::int64_t>()) << interval;
    const auto total_at = [&](std::int64_t samples) {
      return fixed + article::simulate_memory_and_flops(layers, interval,
                                                        layer * static_cast<double>(samples))
                         .activation_gb;
    };
    expect_value(row["total_gb_at_max"], total_at(batch));
    expect_value(row["total_gb_at_next"], total_at(batch + 1));
  }
  for (const json& row : model()["edge_cases"]["max_batch_for_ckpt"]) {
    const json& in = row["in"];
    EXPECT_EQ(article::max_batch_for_ckpt(in["n_layers"], in["ck_every"], in["act_per_layer_b1"],
                                          in["fixed_gb"], in["gpu_gb"]),
              row["out"].get<std::int64_t>());
  }
}

TEST(Article, HasItsFrontier) {
  const json& given = model()["frontier"];
  const auto rows = article::frontier(given["in"]["n_layers"], given["in"]["act_per_layer"],
                                      given["in"]["fixed_gb"], given["in"]["gpu_gb"]);
  ASSERT_EQ(rows.size(), given["rows"].size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& row = given["rows"][i];
    EXPECT_EQ(rows[i].interval, row["checkpoint_every"].get<std::int64_t>());
    expect_printed(row["total_gb"], rows[i].total_gb, 2);
    expect_printed(row["saved_pct"], rows[i].saved_pct, 1);
    expect_printed(row["extra_forward_pct"], rows[i].extra_forward_pct, 1);
    EXPECT_EQ(rows[i].fits, row["fits"].get<bool>());
    ASSERT_EQ(rows[i].efficiency.has_value(), !row["efficiency"]["value"].is_null());
    if (rows[i].efficiency) expect_printed(row["efficiency"], *rows[i].efficiency, 2);
  }
}

TEST(Article, HasItsThroughputs) {
  const json& given = model()["throughput_at_max_batch"];
  const auto rows =
      article::throughput_at_max_batch(given["in"]["n_layers"], given["in"]["act_per_layer_b1"],
                                       given["in"]["fixed_gb"], given["in"]["gpu_gb"]);
  ASSERT_EQ(rows.size(), given["rows"].size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& row = given["rows"][i];
    EXPECT_EQ(rows[i].max_batch, row["max_batch"].get<std::int64_t>());
    expect_printed(row["extra_step_pct"], rows[i].extra_step_pct, 1);
    expect_printed(row["throughput"], rows[i].throughput, 2);
  }
  for (const auto& row : article::throughput_at_max_batch(32, 0.421875, 80))
    EXPECT_EQ(row.throughput, model()["edge_cases"]["throughput_when_nothing_fits"].get<double>());
}

TEST(Article, RecommendsWhatItRecommends) {
  for (const json& row : model()["recommend_checkpointing"]["cases"]) {
    const json& in = row["in"];
    const auto layer = layer_of(in);
    const auto got =
        article::recommend_checkpointing(in["params_b"], in["gpu_gb"], in["n_layers"], layer);
    const json& out = row["out"];
    ASSERT_EQ(got.has_value(), out["fits"].get<bool>()) << in;
    if (got) {
      EXPECT_EQ(got->checkpoint_every, out["checkpoint_every"].get<std::int64_t>());
      expect_printed(out["total_gb"], got->total_gb, 1);
      expect_printed(out["extra_forward_pct"], got->extra_forward_pct, 1);
    }
    const double act = article::activation_memory_per_layer(layer).total;
    expect_value(row["act_gb_per_layer"], act);
    for (const json& tried : row["tried"]) {
      const auto cost =
          article::simulate_memory_and_flops(in["n_layers"], tried["checkpoint_every"], act);
      expect_value(tried["total_gb"], row["fixed_gb"].get<double>() + cost.activation_gb);
    }
  }
}

TEST(Article, RefusesWhatIsNoModel) {
  using refrain::OptionError;
  support::expect_says<OptionError>({"interval is 0", "at least 1"},
                                    [] { (void)article::simulate_memory_and_flops(32, 0, 1); });
  EXPECT_THROW((void)article::simulate_memory_and_flops(32, -4, 1), OptionError);
  EXPECT_THROW((void)article::simulate_memory_and_flops(0, 1, 1), OptionError);
  EXPECT_THROW((void)article::activation_memory_per_layer({1, 2048, 0, 1, 1}), OptionError);
}

TEST(Reported, TellsAnIntervalForEachSize) {
  for (const json& row : model()["reported"]["interval_by_model_size"]["rows"]) {
    const auto least = static_cast<std::int64_t>(row["params_b"][0].get<double>() * 1e9);
    const auto& rule = refrain::estimate::reported::interval_by_size(least + 1);
    EXPECT_EQ(rule.interval.least, row["interval"][0].get<std::int64_t>());
    EXPECT_EQ(rule.interval.most, row["interval"][1].get<std::int64_t>());
    EXPECT_EQ(rule.saved_pct.most, row["memory_saving_pct"][1].get<std::int64_t>());
    EXPECT_EQ(rule.overhead_pct.least, row["overhead_pct"][0].get<std::int64_t>());
    EXPECT_EQ(rule.offload, row.contains("offload"));
  }
  EXPECT_THROW((void)refrain::estimate::reported::interval_by_size(0), refrain::OptionError);
}

}  // namespace
