// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/policy.hpp>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace train_gpt {

/// An option that means nothing here; its text is the one sentence the user sees.
class BadOption : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::vector<std::string> policies;
  std::int64_t layers = 12;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t seq = 256;
  std::int64_t batch = 8;
  std::int64_t steps = 16;
  std::int64_t accumulate = 1;
  std::uint64_t seed = 1;
  double learning_rate = 3e-3;
  double dropout = 0.1;
  std::string device = "cpu";
  std::string autocast;  // empty: off
  std::string route = "hooks";
  std::string tier;    // empty: none
  std::string data;    // empty: LibTorch's own headers
  std::string save;    // empty: nowhere
  std::string resume;  // empty: from the start
  std::string ledger;  // empty: no step is recorded
  bool lint = false;   // one step, and what the linter says of it
  std::string out = ".";

  /// Several policies are compared with plain; one is simply trained.
  bool comparing() const { return policies.size() > 1; }
};

/// What the command line says, complete and checked. Throws `BadOption`; `--help` exits.
Options parse(int argc, char** argv);

/// The policy that replays nothing: all that the blocks save goes to the tier.
inline constexpr const char* kOffload = "offload";

/// "every:4" as a policy.
refrain::policy::AnyPolicy policy_from(const std::string& word);

/// How much memory a step may take: so many bytes, or so much of a plain step's peak.
struct Budget {
  std::optional<refrain::Bytes> bytes;
  double share = 1;
};

/// "budget:200MiB" or "fit:0.5"; empty for other policies.
std::optional<Budget> budget_from(const std::string& word);

}  // namespace train_gpt
