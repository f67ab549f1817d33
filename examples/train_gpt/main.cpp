// SPDX-License-Identifier: BSD-3-Clause
//
// Trains a GPT on the characters of real text, plain and under checkpointing policies: what memory
// each saves, what time it costs, and that every gradient stays the same, bit for bit.
#include "comparison.hpp"
#include "options.hpp"
#include "report.hpp"
#include "text.hpp"
#include "trainer.hpp"
#include <refrain/finding.hpp>
#include <refrain/ledger_file.hpp>
#include <refrain/memory.hpp>
#include <refrain/record.hpp>

#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace train_gpt {
namespace {

constexpr int kBadOption = 2;

void describe(const Options& options, const Text& text, std::int64_t parameters) {
  fmt::print(
      "GPT of {} layers, width {}, {} heads: {} parameters; batches of {} x {} of {} "
      "characters, {} on {}\n",
      options.layers, options.width, options.heads, parameters, options.batch, options.seq,
      text.size(), options.autocast.empty() ? "float32" : "bf16 autocast", options.device);
}

std::int64_t parameter_count(const Trainer& trainer) {
  std::int64_t sum = 0;
  for (const auto& parameter : trainer.parameters()) sum += parameter.numel();
  return sum;
}

/// A place that cannot be written should be found out before the training, not after it.
void check_writable(const std::string& path, const char* option) {
  const bool existed = std::filesystem::exists(path);
  const bool opens = std::ofstream(path, std::ios::app).is_open();
  if (!opens) throw BadOption(fmt::format("{} {}: cannot be written.", option, path));
  if (!existed) std::filesystem::remove(path);
}

/// REFRAIN_PYTHON names a Python that can plot; set and empty, there is none.
void draw(const std::string& script, const std::string& files) {
  const char* const named = std::getenv("REFRAIN_PYTHON");
  const std::string python = named == nullptr ? TRAIN_GPT_PYTHON : named;
  const auto command = fmt::format("\"{}\" \"{}\" {}", python, script, files);
  if (!python.empty() && std::system(command.c_str()) == 0) return;
  fmt::print("No pictures were drawn; a Python with matplotlib draws them: python3 {} {}\n", script,
             files);
}

int lint_one(const Options& options, const Text& text) {
  Trainer trainer(options, text, options.policies.front());
  describe(options, text, parameter_count(trainer));
  trainer.step();  // makes what the optimizer keeps
  const auto findings = trainer.lint();
  fmt::print("{}: {}\n", options.policies.front(), to_string(findings));
  return refrain::any_warning(findings) ? EXIT_FAILURE : EXIT_SUCCESS;
}

/// One more step, written down.
void record_step(const Options& options, Trainer& trainer) {
  const auto ledger = refrain::record([&] { trainer.step(); });
  fmt::print("{}\n", ledger);
  const std::filesystem::path file(options.ledger);
  refrain::save_ledger(ledger, options.ledger);
  refrain::save_trace(ledger, std::filesystem::path(file).replace_extension("trace.json").string());
  const auto picture = std::filesystem::path(file).replace_extension("png");
  draw(TRAIN_GPT_PLOT_LEDGER, fmt::format("\"{}\" \"{}\"", file.string(), picture.string()));
}

int run_one(const Options& options, const Text& text) {
  if (!options.save.empty()) check_writable(options.save, "--save");
  if (!options.ledger.empty()) check_writable(options.ledger, "--ledger");
  Trainer trainer(options, text, options.policies.front());
  describe(options, text, parameter_count(trainer));
  const auto* const plan = trainer.plan_of(options.policies.front());
  if (plan != nullptr) fmt::print("{}\n", *plan);
  if (!options.resume.empty()) trainer.resume(options.resume);
  if (trainer.steps() >= options.steps) {
    throw BadOption(
        fmt::format("--resume {}: has {} steps behind it, so ask for more than that "
                    "with --steps.",
                    options.resume, trainer.steps()));
  }
  Progress progress;
  Bytes peak;
  while (trainer.steps() < options.steps) {
    const auto step = trainer.step();
    peak = std::max(peak, step.memory.peak);
    const auto line = progress_line(options.policies.front(), step, trainer.steps(), options,
                                    trainer.tokens_per_step());
    const bool stays = trainer.steps() % 10 == 0 || trainer.steps() == options.steps;
    stays ? progress.keep(line) : progress.show(line);
  }
  if (!options.save.empty()) trainer.save(options.save);
  if (!options.ledger.empty()) record_step(options, trainer);
  if (plan != nullptr) fmt::print("peak predicted {}, ", plan->predicted_peak());
  fmt::print("peak {}, weights {:016x}\n", peak, fingerprint(trainer.parameters()));
  return EXIT_SUCCESS;
}

int compare(const Options& options, const Text& text) {
  constexpr int kRounds = 5;
  const auto json = results_file(options);
  check_writable(json.string(), "--out");
  Progress progress;
  describe(options, text, parameter_count(Trainer(options, text, "none")));
  std::vector<Row> rows;
  for (const auto& policy : options.policies) {
    rows.push_back(train(options, text, policy, progress));
  }
  measure(options, text, kRounds, rows, progress);
  write_json(json, options, rows);
  progress.show("");
  fmt::print("\n{}\n", table(rows));
  for (const auto& row : rows) {
    if (row.predicted) {
      fmt::print("{}: peak predicted before training {}, measured {}.\n", row.policy,
                 *row.predicted, row.peak);
    }
  }
  fmt::print(
      "Peak and losses over {} steps; weights and optimizer are {} of each peak. Step time: "
      "medians of {} steps,\nthe policies taking turns. Gradients: every bit of every "
      "gradient in every step.\n",
      options.steps, rows.front().at_rest, kRounds);
  std::fflush(stdout);
  draw(TRAIN_GPT_PLOT, fmt::format("\"{}\"", json.string()));
  const bool equal = std::all_of(
      rows.begin(), rows.end(), [&](const Row& row) { return row.same_training_as(rows.front()); });
  return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace train_gpt

int main(int argc, char** argv) {
  refrain::count_cpu_memory();
  try {
    const auto options = train_gpt::parse(argc, argv);
    (void)train_gpt::device_for(options.device);
    const auto text = train_gpt::text_for(options);
    if (options.lint) return train_gpt::lint_one(options, text);
    return options.comparing() ? train_gpt::compare(options, text)
                               : train_gpt::run_one(options, text);
  } catch (const train_gpt::BadOption& bad) {
    fmt::print(stderr, "train_gpt: {}\n", bad.what());
    return train_gpt::kBadOption;
  } catch (const c10::Error& error) {
    fmt::print(stderr, "train_gpt: {}\n", error.what_without_backtrace());
    return EXIT_FAILURE;
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_gpt: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
