// SPDX-License-Identifier: BSD-3-Clause
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

namespace train_gpt {
namespace {

namespace policy = refrain::policy;

constexpr std::string_view kPolicies =
    "none, all, every:K, one_in:K, segments:N, sqrt, first:N, binary, budget:BYTES, fit:SHARE, or "
    "offload, which needs --tier";

std::int64_t number_of(const std::string& word, std::string_view digits) {
  std::int64_t number = 0;
  const auto* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  if (error == std::errc() && stop == end && number > 0) return number;
  throw BadOption(fmt::format("--policy {}: after the colon goes a whole number above 0.", word));
}

std::vector<std::string> demo_policies(std::int64_t layers) {
  std::vector<std::string> words{"none", "one_in:2"};
  if (layers > 3) words.emplace_back("every:3");
  for (const char* word : {"sqrt", "fit:0.5", "binary", "all"}) words.emplace_back(word);
  return words;
}

/// What CLI11 asks of an option's text; its answer follows "--option: ".
CLI::Validator must(const char* be, std::function<bool(const std::string&)> hold) {
  return {[be, hold = std::move(hold)](const std::string& text) {
            return hold(text) ? std::string() : fmt::format("{} is not {}", text, be);
          },
          ""};
}

template <class Number>
bool reads_as(const std::string& text, Number least, Number most) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() && number >= least &&
         number <= most;
}

void check_policies(const Options& options) {
  refrain::Chain chain;
  chain.stages.resize(static_cast<std::size_t>(options.layers));
  for (const auto& word : options.policies) {
    if (word == kOffload && options.tier.empty())
      throw BadOption("--policy offload moves what the blocks save, so it needs a --tier.");
    if (budget_from(word)) continue;
    const auto how = policy_from(word);
    try {
      (void)how.cut(chain);
    } catch (const refrain::Error&) {
      throw BadOption(fmt::format("--policy {}: there are only {} layers to cut, see --layers.",
                                  word, options.layers));
    }
  }
}

void check(const Options& options) {
  if (options.width % options.heads != 0) {
    throw BadOption(fmt::format("--width {} cannot be shared evenly by --heads {}.", options.width,
                                options.heads));
  }
  if (options.comparing() && !(options.save.empty() && options.resume.empty())) {
    throw BadOption("--save and --resume continue one run, so they need exactly one --policy.");
  }
  if (options.comparing() && (options.lint || !options.ledger.empty()))
    throw BadOption("--lint and --ledger look at one step, so they need exactly one --policy.");
  if (options.comparing() && options.tier.starts_with("quantized"))
    throw BadOption(
        "--tier quantized changes gradients, so there is nothing to compare: name one "
        "--policy.");
  check_policies(options);
}

}  // namespace

policy::AnyPolicy policy_from(const std::string& word) {
  using Make = std::function<policy::AnyPolicy()>;
  using MakeOf = std::function<policy::AnyPolicy(std::int64_t)>;
  static const std::map<std::string, Make, std::less<>> plain{
      {"none", [] { return policy::none(); }},
      {"all", [] { return policy::all(); }},
      {kOffload, [] { return policy::all(); }},
      {"sqrt", [] { return policy::sqrt_n(); }},
      {"binary", [] { return policy::binary(); }}};
  static const std::map<std::string, MakeOf, std::less<>> counted{
      {"every", [](std::int64_t k) { return policy::every(k); }},
      {"one_in", [](std::int64_t k) { return policy::one_in(k); }},
      {"segments", [](std::int64_t n) { return policy::segments(n); }},
      {"first", [](std::int64_t n) { return policy::first(n); }}};

  const auto colon = word.find(':');
  const auto name = word.substr(0, colon);
  if (const auto found = plain.find(word); found != plain.end()) return found->second();
  if (const auto found = counted.find(name); found != counted.end()) {
    if (colon == std::string::npos) {
      throw BadOption(fmt::format("--policy {0} needs a number, as in {0}:4.", name));
    }
    return found->second(number_of(word, std::string_view(word).substr(colon + 1)));
  }
  throw BadOption(fmt::format("--policy {} is not one of {}.", word, kPolicies));
}

std::optional<Budget> budget_from(const std::string& word) {
  constexpr std::string_view kBudget = "budget:";
  constexpr std::string_view kFit = "fit:";
  if (word.starts_with(kBudget)) {
    const auto bytes = refrain::bytes_from(std::string_view(word).substr(kBudget.size()));
    if (bytes) return Budget{bytes};
    throw BadOption(
        fmt::format("--policy {}: after the colon goes an amount, as in 200MiB.", word));
  }
  if (word.starts_with(kFit)) {
    const std::string share = word.substr(kFit.size());
    if (!reads_as(share, 0.0, 1.0)) {
      throw BadOption(fmt::format("--policy {}: after the colon goes a share from 0 to 1.", word));
    }
    return Budget{std::nullopt, std::strtod(share.c_str(), nullptr)};
  }
  return std::nullopt;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a small GPT on the characters of real text, plain and checkpointed.\n"
      "Without --policy it trains under several policies in turn and compares them.");
  app.failure_message([](const CLI::App*, const CLI::Error& error) { return error.what(); });
  constexpr std::int64_t kMost = 1'000'000'000;
  const auto count = must("a whole number from 1 to 1000000000",
                          [](const auto& text) { return reads_as<std::int64_t>(text, 1, kMost); });
  const auto seed = must("a whole number, 0 or more", [](const auto& text) {
    return reads_as<std::uint64_t>(text, 0, std::numeric_limits<std::int64_t>::max());
  });
  const auto rate = must("a number above 0", [](const auto& text) {
    return reads_as(text, std::numeric_limits<double>::min(), std::numeric_limits<double>::max());
  });
  const auto share =
      must("a number from 0 to 0.99", [](const auto& text) { return reads_as(text, 0.0, 0.99); });

  const auto add = [&app](const char* name, auto& to, const char* type, const std::string& about) {
    return app.add_option(name, to, about)->type_name(type);
  };
  add("--policy", options.policies, "P",
      fmt::format("{}; several are compared with none", kPolicies));
  add("--layers", options.layers, "N", "transformer blocks")->check(count);
  add("--width", options.width, "N", "numbers per token")->check(count);
  add("--heads", options.heads, "N", "attention heads")->check(count);
  add("--seq", options.seq, "N", "tokens per sequence")->check(count);
  add("--batch", options.batch, "N", "sequences per batch")->check(count);
  add("--steps", options.steps, "N", "training steps, resumed ones included")->check(count);
  add("--accumulate", options.accumulate, "N", "batches per step")->check(count);
  add("--seed", options.seed, "N", "for weights, dropout and the order of the text")->check(seed);
  add("--lr", options.learning_rate, "X", "AdamW's learning rate")->check(rate);
  add("--dropout", options.dropout, "X", "share of numbers dropped")->check(share);
  add("--device", options.device, "D", "cpu, cuda, cuda:1, ...");
  add("--autocast", options.autocast, "TYPE", "bf16 arithmetic where it is safe")
      ->check(must("bf16", [](const auto& text) { return text == "bf16"; }));
  add("--route", options.route, "R", "the way into autograd: hooks or function")
      ->check(must("hooks or function",
                   [](const auto& text) { return text == "hooks" || text == "function"; }));
  add("--tier", options.tier, "T",
      "where what the blocks keep waits: host, disk:FOLDER, quantized:8")
      ->check(must("host, disk:FOLDER, quantized:8 or quantized:4", [](const auto& text) {
        return text == "host" || text == "quantized:8" || text == "quantized:4" ||
               text.starts_with("disk:");
      }));
  add("--data", options.data, "FILE", "a text to read (default: LibTorch's own headers)");
  add("--save", options.save, "FILE", "written at the end, to go on from");
  add("--resume", options.resume, "FILE", "what --save has written");
  add("--ledger", options.ledger, "FILE",
      "records one more step: a table, and FILE, a trace and a picture beside it");
  app.add_flag("--lint", options.lint,
               "reports regions that gain nothing or are wrong, instead of training");
  add("--out", options.out, "FOLDER", "for the comparison's results");
  app.get_formatter()->column_width(28);
  for (auto* const option : app.get_options()) {
    if (option->get_name() != "--policy" && option->get_name() != "--help") {
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    throw BadOption(fmt::format("{}.", error.what()));
  }
  const bool looks = options.lint || !options.ledger.empty();
  if (options.policies.empty() && looks) options.policies = {"all"};
  if (options.policies.empty() && options.save.empty() && options.resume.empty()) {
    options.policies = demo_policies(options.layers);
  } else if (options.policies.empty()) {
    options.policies = {"none"};
  }
  if (options.comparing()) {
    // Plain goes first: the others are measured against it.
    std::erase(options.policies, "none");
    options.policies.insert(options.policies.begin(), "none");
  }
  check(options);
  return options;
}

}  // namespace train_gpt
