// SPDX-License-Identifier: BSD-3-Clause
// Runs random programs plain and checkpointed, and prints the smallest form of each that differs.

#include "fuzz/generate.hpp"
#include "fuzz/shrink.hpp"
#include "fuzz/twin.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace refrain_fuzz;

std::string running;  // what to print if the process dies

void die(int signal) {
  const std::string text = "\nthis program ended the process:\n" + running;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

Verdict run(const Program& program) {
  running = to_text(program);
  return twin(program);
}

const char* name(Verdict::Kind kind) {
  static constexpr const char* kNames[] = {
      "equal",     "both throw",           "refused", "checkpointed run throws",
      "different", "fault goes unnoticed", "leak"};
  return kNames[kind];
}

void report(const Program& program, const Verdict& verdict) {
  fmt::print("{}: {}\n{}\n", name(verdict.kind), verdict.detail, to_text(program));
}

Program shrunk(const Program& program, const Verdict& verdict) {
  const auto fails = [&](const Program& candidate) {
    try {
      return run(candidate).kind == verdict.kind;
    } catch (const std::exception&) {
      return false;  // no program at all: it reads a value before it is made
    }
  };
  return Shrinker(program, fails).run();
}

int replay(const std::string& text) {
  const auto program = from_text(text);
  const auto verdict = run(program);
  report(program, verdict);
  return verdict.failed() ? 1 : 0;
}

struct Plan {
  std::uint64_t count = 300;
  std::uint64_t seed = 1;
  bool whole = false;
  int enough = 10;
  bool tally = false;
  std::vector<std::string> without;
};

bool wanted(const Program& program, const Plan& plan) {
  const auto text = to_text(program);
  return std::ranges::none_of(
      plan.without, [&](const auto& word) { return text.find(word) != std::string::npos; });
}

int fuzz(const Plan& plan) {
  const auto begin = std::chrono::steady_clock::now();
  std::map<Verdict::Kind, int> verdicts;
  std::map<std::string, int> reasons;
  int failures = 0;
  for (std::uint64_t i = 0; i < plan.count && failures < plan.enough; ++i) {
    const auto program = generate(plan.seed + i);
    if (!wanted(program, plan)) continue;
    const auto verdict = run(program);
    ++verdicts[verdict.kind];
    if (!verdict.failed()) ++reasons[verdict.detail.substr(0, 90)];
    if (!verdict.failed()) continue;
    ++failures;
    fmt::print("seed {}: ", plan.seed + i);
    const auto smallest = plan.whole ? program : shrunk(program, verdict);
    report(smallest, run(smallest));
    std::fflush(stdout);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  int programs = 0;
  for (auto [kind, number] : verdicts) {
    fmt::print("{:>8}  {}\n", number, name(kind));
    programs += number;
  }
  for (const auto& [reason, number] : reasons) {
    if (plan.tally && !reason.empty()) fmt::print("{:>8}  {}\n", number, reason);
  }
  fmt::print("{} programs in {:.1f} s, {:.0f} a second, {} failures\n", programs, took.count(),
             programs / took.count(), failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  refrain::count_cpu_memory(refrain::Poison::On);
  at::set_num_threads(1);
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS}) std::signal(signal, die);

  CLI::App app("Random programs, plain against checkpointed.");
  Plan plan;
  std::string text;
  std::string file;
  app.add_option("N", plan.count, "how many programs");
  app.add_option("--seed", plan.seed, "of the first program; the next ones count up");
  app.add_option("--replay", text, "run this program text instead");
  app.add_option("--replay-file", file, "run the program in this file instead")
      ->check(CLI::ExistingFile);
  app.add_flag("--whole", plan.whole, "print failing programs as they were made, not shrunk");
  app.add_option("--stop-after", plan.enough, "failures");
  app.add_option("--without", plan.without,
                 "leave out programs whose text holds one of these words");
  app.add_flag("--tally", plan.tally, "count what programs that both runs refuse were refused for");
  CLI11_PARSE(app, argc, argv);

  if (!file.empty()) {
    std::stringstream content;
    content << std::ifstream(file).rdbuf();
    text = content.str();
  }
  return text.empty() ? fuzz(plan) : replay(text);
}
