// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "output.hpp"
#include "plans.hpp"
#include <refrain/bytes.hpp>
#include <refrain/estimate.hpp>
#include <refrain/planner/frontier.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace refrain_plan {

namespace estimate = refrain::estimate;

/// What `refrain-plan estimate` is told.
struct EstimateOptions {
  std::string model;
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocabulary = 0;
  std::string mlp = "gelu";
  std::string device = "80GiB";
  std::string attention = "flash";
  std::string optimizer = "adam";
  std::int64_t master = 0;
  estimate::Workload work{.sequence = 2048};
  double dropout = 0;
  bool sequence_parallel = false;
};

inline void add_options(CLI::App& command, EstimateOptions& to) {
  std::string names;
  for (const auto& model : estimate::presets()) names += (names.empty() ? "" : ", ") + model.name;
  const auto number = [&command](const char* name, std::int64_t& value, const char* about) {
    command.add_option(name, value, about)->type_name("N");
  };
  command.add_option("--model", to.model, "one of " + names + "; or its shape:")->type_name("M");
  number("--layers", to.layers, "blocks");
  number("--width", to.width, "channels a token");
  number("--heads", to.heads, "attention heads");
  number("--kv-heads", to.kv_heads, "heads of keys and values (default: as many)");
  number("--ffn", to.ffn, "the MLP's width (default: 4 times the width)");
  command.add_option("--mlp", to.mlp, "gelu or swiglu")->check(CLI::IsMember({"gelu", "swiglu"}));
  number("--vocab", to.vocabulary, "tokens in the vocabulary");
  number("--batch", to.work.batch, "sequences");
  number("--seq", to.work.sequence, "tokens a sequence");
  command.add_option("--dropout", to.dropout, "share of numbers dropped, everywhere");
  command.add_option("--attention", to.attention, "flash or plain")
      ->check(CLI::IsMember({"flash", "plain"}));
  number("--tensor-parallel", to.work.tensor_parallel, "devices that share each matrix");
  command.add_flag("--sequence-parallel", to.sequence_parallel,
                   "they share what lies between the matrices too");
  command.add_option("--optimizer", to.optimizer, "sgd, momentum, adam or adam8bit")
      ->check(CLI::IsMember({"sgd", "momentum", "adam", "adam8bit"}));
  number("--master", to.master, "bytes of a master copy of each parameter");
  command.add_option("--device", to.device, "the device's memory")->type_name("BYTES");
}

/// What is told, as the library takes it.
struct Estimated {
  estimate::ModelShape model;
  estimate::Workload work;
  estimate::Training training;
  Bytes device;

  explicit Estimated(const EstimateOptions& given) : model(model_of(given)), work(given.work) {
    static const std::map<std::string, estimate::Optimizer> optimizers{
        {"sgd", estimate::Optimizer::Sgd},
        {"momentum", estimate::Optimizer::Momentum},
        {"adam", estimate::Optimizer::Adam},
        {"adam8bit", estimate::Optimizer::Adam8bit}};
    work.attention =
        given.attention == "plain" ? estimate::Attention::Plain : estimate::Attention::Flash;
    work.attention_dropout = work.residual_dropout = given.dropout;
    if (given.sequence_parallel) work.sequence_parallel = estimate::SequenceParallel::On;
    training.optimizer = optimizers.at(given.optimizer);
    training.master = Bytes(given.master);
    const auto amount = refrain::bytes_from(given.device);
    if (!amount) {
      throw BadInput(
          fmt::format("--device {}: is not an amount of memory, as 80GiB is.", given.device));
    }
    device = *amount;
  }

 private:
  static estimate::ModelShape model_of(const EstimateOptions& given) {
    if (!given.model.empty()) return estimate::preset(given.model);
    if (given.layers == 0 || given.width == 0 || given.heads == 0 || given.vocabulary == 0) {
      throw BadInput(
          "a model is named with --model, or has --layers, --width, --heads and --vocab.");
    }
    constexpr std::int64_t kMostLayers = 2000;  // the solver's memory grows with their square
    if (given.layers > kMostLayers) {
      throw BadInput(
          fmt::format("--layers {}: at most {} can be planned.", given.layers, kMostLayers));
    }
    const std::int64_t kv_heads = given.kv_heads == 0 ? given.heads : given.kv_heads;
    estimate::ModelShape model;
    model.name = "the model";
    model.block = given.mlp == "swiglu"
                      ? estimate::llama_block(given.width, given.heads, kv_heads, 4 * given.width)
                      : estimate::gpt_block(given.width, given.heads);
    model.block.kv_heads = kv_heads;
    if (given.ffn != 0) model.block.ffn = given.ffn;
    model.blocks = given.layers;
    model.vocabulary = given.vocabulary;
    return model;
  }
};

/// What one block leaves behind, term by term.
inline Rows block_rows(const Estimated& of) {
  const estimate::BlockBytes block = estimate::block_bytes(of.model.block, of.work);
  Rows rows({"a block keeps", "bytes"});
  rows.add({"norms", bytes(block.norms)});
  rows.add({"queries, keys, values", bytes(block.qkv)});
  rows.add({"attention core", bytes(block.attention)});
  rows.add({"attention output", bytes(block.attention_output)});
  rows.add({"middle", bytes(block.middle)});
  rows.add({"MLP", bytes(block.mlp)});
  rows.add({"dropout masks", bytes(block.masks)});
  rows.add({"output", bytes(block.output)});
  rows.add({"all", bytes(block.kept())});
  rows.add({"boundary", bytes(block.boundary)});
  return rows;
}

/// The whole model, all activations stored.
inline Rows total_rows(const Estimated& of) {
  const auto states = estimate::state_bytes(of.model, of.training, of.work.tensor_parallel);
  const auto head = estimate::head_bytes(of.model, of.work);
  const auto all = estimate::step(of.model, of.work, of.training, of.model.blocks);
  Rows rows({"storing all", "bytes"});
  rows.add({"parameters", bytes(states.parameters)});
  rows.add({"gradients", bytes(states.gradients)});
  rows.add({"optimizer", bytes(states.optimizer + states.master)});
  rows.add({"blocks' activations",
            bytes(of.model.blocks * estimate::block_bytes(of.model.block, of.work).kept())});
  rows.add({"logits", bytes(head.logits)});
  rows.add({"the loss, while it runs", bytes(head.loss)});
  rows.add({"peak of a step", bytes(all.peak)});
  rows.add({"usable of the device", bytes(estimate::usable(of.device, of.training))});
  return rows;
}

/// Every interval: ours, and the article's figures beside them.
inline Rows sweep_rows(const Estimated& of) {
  const auto states = estimate::state_bytes(of.model, of.training, of.work.tensor_parallel);
  const double article_fixed =
      static_cast<double>((states.parameters + states.optimizer).count()) / estimate::article::kGb;
  const estimate::article::LayerShape layer{of.work.batch,        of.work.sequence,
                                            of.model.block.width, of.model.block.ffn,
                                            of.model.block.heads, of.work.element.count()};
  const double layer_gb = estimate::article::activation_memory_per_layer(layer).total;
  Rows rows({"interval", "peak", "fits", "more time", "largest batch", "throughput", "article",
             "its more forward"});
  for (const auto& row : estimate::sweep(of.model, of.work, of.training, of.device)) {
    const auto article =
        estimate::article::simulate_memory_and_flops(of.model.blocks, row.interval, layer_gb);
    const double total = article_fixed + article.activation_gb;
    rows.add({{fmt::format("{}", row.interval), row.interval},
              bytes(row.step.peak),
              {row.fits ? "yes" : "no", row.fits},
              percent(row.step.overhead),
              {fmt::format("{}", row.largest_batch), row.largest_batch},
              {fmt::format("{:.2f}", row.throughput), row.throughput},
              {fmt::format("{:.2f} GB", total), total},
              {fmt::format("{:.1f} %", article.extra_forward_pct), article.extra_forward_pct}});
  }
  return rows;
}

/// Where plans of any shape go, beyond equal segments: a dozen steps of the frontier.
inline Rows plan_rows(const Estimated& of) {
  constexpr std::size_t kShown = 12;
  const auto profile = estimate::profile_of(of.model, of.work, of.training);
  const auto points = refrain::planner::Frontier(profile.chain).points();
  const double plain = refrain::plain_cost(profile).seconds;
  Rows rows({"a plan's peak", "more time"});
  const std::size_t count = std::min(kShown, points.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto& point = points[count == 1 ? 0 : i * (points.size() - 1) / (count - 1)];
    rows.add({bytes(profile.resident + Bytes(point.peak)), percent(point.seconds / plain - 1)});
  }
  return rows;
}

inline std::string estimated(const EstimateOptions& options, Format format) {
  const Estimated of(options);
  const auto advice = estimate::recommend(of.model, of.work, of.training, of.device);
  const std::int64_t parameters = estimate::parameters(of.model);
  if (format == Format::Csv) return sweep_rows(of).csv();
  if (format == Format::Json) {
    std::vector<std::string> reasons;
    for (const auto& reason : advice.reasons) reasons.push_back(reason.text);
    const nlohmann::json json = {
        {"model", of.model.name},
        {"parameters", parameters},
        {"block", block_rows(of).json()},
        {"total", total_rows(of).json()},
        {"intervals", sweep_rows(of).json()},
        {"plans", plan_rows(of).json()},
        {"advice", {{"interval", advice.interval}, {"batch", advice.batch}, {"reasons", reasons}}}};
    return json.dump(2) + '\n';
  }
  return fmt::format(
      "{}: {} parameters in {} blocks; batch {}, sequence {}, {} bytes an element\n\n{}\n{}\n{}\n"
      "{}\n{}\n\nInterval: blocks a segment, the last one plain. Article: a published calculator's "
      "total, for comparison;\nits interval 1 stores all. Times are from operation counts.\n",
      of.model.name, parameters, of.model.blocks, of.work.batch, of.work.sequence,
      of.work.element.count(), block_rows(of).table(), total_rows(of).table(),
      sweep_rows(of).table(), plan_rows(of).table(), to_string(advice));
}

}  // namespace refrain_plan
