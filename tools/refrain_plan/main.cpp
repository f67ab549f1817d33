// SPDX-License-Identifier: BSD-3-Clause
//
// Estimates from a model's shape, and plans from its profile: estimate, solve, frontier, show,
// diff.
#include "estimates.hpp"
#include "output.hpp"
#include "plans.hpp"
#include "process.hpp"
#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/links.hpp>
#include <refrain/plan.hpp>
#include <refrain/plan_file.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace refrain_plan {
namespace {

constexpr int kBadInput = 2;

Bytes amount_of(const std::string& option, const std::string& text) {
  const auto amount = refrain::bytes_from(text);
  if (amount) return *amount;
  throw BadInput(fmt::format("{} {}: is not an amount of memory, as 6GiB is.", option, text));
}

void add_format(CLI::App& command, Format& format) {
  static const std::map<std::string, Format> names{
      {"table", Format::Table}, {"json", Format::Json}, {"csv", Format::Csv}};
  command.add_option("--format", format, "table, json or csv")
      ->transform(CLI::CheckedTransformer(names))
      ->type_name("F");
}

/// What is told of the tiers that memory may be moved to.
struct TierOptions {
  std::string host_rate;
  std::string host_size;
  std::string disk_rate;
};

void add_options(CLI::App& command, TierOptions& to) {
  const auto amount = [&command](const char* name, std::string& text, const char* about) {
    command.add_option(name, text, about)->type_name("BYTES");
  };
  amount("--host-rate", to.host_rate, "memory may go to the host, so much a second either way");
  amount("--host-size", to.host_size, "what the host has room for (default: for all)");
  amount("--disk-rate", to.disk_rate, "memory may go to the disk, so much a second either way");
}

/// The host first, and the disk beyond it.
std::vector<refrain::Links> tiers_of(const TierOptions& given) {
  std::vector<refrain::Links> tiers;
  const auto add = [&tiers](const char* tier, const char* option, const std::string& rate) {
    const auto bytes = static_cast<double>(amount_of(option, rate).count());
    tiers.push_back({.tier = tier, .out = bytes, .back = bytes});
  };
  if (!given.host_rate.empty()) add("host", "--host-rate", given.host_rate);
  if (!given.host_size.empty()) {
    if (tiers.empty()) throw BadInput("--host-size says nothing without --host-rate.");
    tiers.back().capacity = amount_of("--host-size", given.host_size);
  }
  if (!given.disk_rate.empty()) add("disk", "--disk-rate", given.disk_rate);
  return tiers;
}

Plan solved(const Profile& profile, Bytes budget, const std::vector<refrain::Links>& tiers) {
  return tiers.empty() ? refrain::plan(profile, budget) : refrain::plan(profile, budget, tiers);
}

/// What each command reads from the line, and does with it.
class Program {
 public:
  Program() {
    app_.require_subcommand(1);
    app_.failure_message([](const CLI::App*, const CLI::Error& error) { return error.what(); });
    app_.footer(
        "A profile is what refrain::save_profile writes, a plan what refrain::save_plan does.\n"
        "  refrain-plan estimate --model llama-7b --batch 4 --device 80GiB\n"
        "  refrain-plan frontier profile.json\n"
        "  refrain-plan solve profile.json --budget 6GiB --out plan.json\n"
        "  refrain-plan solve profile.json --budget 4GiB --host-rate 12GB --disk-rate 2GB\n"
        "Ends with 0, with 1 if no plan fits, with 2 if the input is wrong.");
    add_estimate();
    add_solve();
    add_frontier();
    add_show();
    add_diff();
  }

  int run(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
      return EXIT_SUCCESS;
    } catch (const CLI::Success& asked_for_help) {
      return app_.exit(asked_for_help);
    } catch (const CLI::ParseError& error) {
      fmt::print(stderr, "refrain-plan: {}\n", error.what());
    } catch (const BadInput& bad) {
      fmt::print(stderr, "refrain-plan: {}\n", bad.what());
    } catch (const refrain::BudgetError& error) {
      fmt::print(stderr, "{}\n", error.what());
      return EXIT_FAILURE;
    } catch (const refrain::Error& error) {
      std::string_view text = error.what();
      text.remove_prefix(std::string_view("refrain: ").size());
      fmt::print(stderr, "refrain-plan: {}\n", text.substr(0, text.find('\n')));
    }
    return kBadInput;
  }

 private:
  void add_estimate() {
    auto& command = *app_.add_subcommand(
        "estimate",
        "what a model of this shape takes, before it exists, and which interval to choose");
    add_options(command, estimate_);
    add_format(command, format_);
    command.callback([this] { fmt::print("{}", estimated(estimate_, format_)); });
  }

  void add_solve() {
    auto& command = *app_.add_subcommand("solve", "the cheapest plan within a budget");
    command.add_option("profile", first_, "a profile, or a plan, whose profile is used")
        ->required();
    command.add_option("--budget", budget_, "all that may live on the device, as 6GiB")->required();
    command.add_option("--out", out_, "where the plan is written, as JSON");
    add_options(command, tiers_);
    add_format(command, format_);
    command.callback([this] {
      const Plan plan =
          solved(load(first_).profile, amount_of("--budget", budget_), tiers_of(tiers_));
      if (!out_.empty()) refrain::save_plan(plan, out_);
      fmt::print("{}", shown(plan, format_));
    });
  }

  void add_frontier() {
    auto& command = *app_.add_subcommand(
        "frontier", "what each amount of memory costs in time: every plan that no other beats");
    command.add_option("profile", first_, "a profile, or a plan, whose profile is used")
        ->required();
    command.add_option("--picture", out_, "a picture of it (needs a Python with matplotlib)");
    add_options(command, tiers_);
    add_format(command, format_);
    command.callback([this] {
      const Rows rows = frontier_of(load(first_).profile, tiers_of(tiers_));
      fmt::print("{}", rows.in(format_));
      if (!out_.empty()) draw(rows, out_);
    });
  }

  void add_show() {
    auto& command = *app_.add_subcommand("show", "a plan or a profile, to read");
    command.add_option("file", first_, "what to show")->required();
    add_format(command, format_);
    command.callback([this] {
      const Loaded loaded = load(first_);
      fmt::print("{}", loaded.plan ? shown(*loaded.plan, format_) : shown(loaded.profile, format_));
    });
  }

  void add_diff() {
    auto& command = *app_.add_subcommand("diff", "what two plans do not have in common");
    command.add_option("first", first_, "a plan")->required();
    command.add_option("second", second_, "another")->required();
    add_format(command, format_);
    command.callback(
        [this] { fmt::print("{}", difference_of(plan_in(first_), plan_in(second_)).in(format_)); });
  }

  static Plan plan_in(const std::string& path) {
    const Loaded loaded = load(path);
    if (!loaded.plan) throw BadInput(fmt::format("{}: is a profile, not a plan.", path));
    return *loaded.plan;
  }

  static void draw(const Rows& rows, const std::string& path) {
    // Through a pipe, and without a shell, which would read the path as a program.
    const char* const named = std::getenv("REFRAIN_PYTHON");
    const std::string python = named == nullptr ? REFRAIN_PLAN_PYTHON : named;
    if (!run_with_input({python, REFRAIN_PLAN_PLOT, path}, rows.json().dump()))
      throw BadInput(fmt::format("--picture {}: no Python here could draw it.", path));
  }

  CLI::App app_{"Plans which layers of a model are forgotten and replayed."};
  EstimateOptions estimate_;
  std::string first_;
  std::string second_;
  std::string budget_;
  TierOptions tiers_;
  std::string out_;
  Format format_ = Format::Table;
};

}  // namespace
}  // namespace refrain_plan

int main(int argc, char** argv) {
  try {
    return refrain_plan::Program().run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "refrain-plan: {}\n", error.what());
    return refrain_plan::kBadInput;
  }
}
