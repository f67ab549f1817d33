// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/best_cut.hpp>
#include <refrain/detail/plain_at_no_cost.hpp>
#include <refrain/finding.hpp>
#include <refrain/ledger.hpp>
#include <refrain/ledger_text.hpp>
#include <refrain/ledger_totals.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refrain {
namespace detail {

/// What can be seen from a ledger alone: a rule a function, each adds its findings.
class LedgerLint {
 public:
  explicit LedgerLint(const Ledger& ledger) : ledger_(ledger), totals_(totals(ledger)) {}

  [[nodiscard]] std::vector<Finding> run() {
    for (const RegionTotal& total : totals_) {
      if (!ran(total.region)) continue;
      if (look_at_gradients(total)) continue;
      look_at_random(total);
      if (look_at_savings(total)) continue;
      look_at_attention(total);
    }
    look_at_the_peak();
    look_at_costs();
    look_at_outputs();
    look_at_the_cut();
    return std::move(findings_);
  }

 private:
  using Why = KeptMemory::Why;

  static constexpr double kLittle = 0.01;

  void add(Rule rule, Severity severity, const std::string& region, Bytes bytes, std::string what,
           std::string cure) {
    findings_.push_back({rule, severity, region, bytes, std::move(what), std::move(cure)});
  }

  template <class Add>
  void for_each_call(const std::string& region, const Add& add) const {
    for (const RegionCall& call : ledger_.calls) {
      if (call.region == region && !call.threw) add(call);
    }
  }

  [[nodiscard]] bool ran(const std::string& region) const {
    return std::any_of(ledger_.calls.begin(), ledger_.calls.end(), [&](const RegionCall& call) {
      return call.region == region && !call.threw;
    });
  }

  bool look_at_gradients(const RegionTotal& total) {
    bool any = false;
    for_each_call(total.region, [&](const RegionCall& call) {
      any = any || call.tensors > 0 || call.differentiable;
    });
    if (any) return false;
    add(Rule::NoGradient, Severity::Warning, total.region, Bytes(0),
        "saves nothing, since autograd would save nothing of it: no gradient flows through it.",
        "leave frozen parts plain, or run them without grad mode.");
    return true;
  }

  bool look_at_savings(const RegionTotal& total) {
    const auto saved = static_cast<double>(total.saved.count());
    if (static_cast<double>(total.forgotten.count()) > kLittle * saved) return false;
    Bytes results;
    Bytes inputs;
    std::string holder;
    Bytes most;
    std::string savers;
    for_each_call(total.region, [&](const RegionCall& call) {
      results += call.kept_for(Why::Operator) + call.kept_for(Why::Name);
      inputs += call.saved_inputs;
      for (const KeptMemory& memory : call.kept) {
        if (memory.why != Why::Held || memory.bytes < most) continue;
        most = memory.bytes;
        holder = memory.holder;
      }
      if (savers.empty() && !call.savers.empty()) savers = call.savers.front().op;
    });
    // What autograd saves and is a result of the region.
    const Bytes outputs = total.saved - total.forgotten - inputs - results - total.held;
    std::string why = "what autograd saves of it are its inputs and parameters.";
    std::string cure = "make the region larger, or leave it plain.";
    const auto is_half = [&](Bytes bytes) {
      return 2 * static_cast<double>(bytes.count()) >= saved && bytes.count() > 0;
    };
    if (total.saved.count() == 0) why = "its operators save nothing but parameters, if that.";
    if (savers.find("attention") != std::string::npos) {
      why = savers + " saves its inputs and its result; its backward computes the rest anew.";
      cure = "leave the attention plain, or let the region begin before the projections.";
    } else if (is_half(results)) {
      why = "its policy keeps nearly all of that.";
      cure = "keep fewer results, or leave it plain.";
    } else if (is_half(total.held)) {
      why = "the rest is held anyway, by " + holder + ".";
      cure = "let go of those tensors, or leave it plain.";
    } else if (is_half(outputs)) {
      why = "most of that is its output, which somebody holds anyway.";
      cure = "let the region end later, or leave it plain.";
    }
    add(Rule::SavesLittle, Severity::Warning, total.region, total.forgotten,
        fmt::format("forgets {} of {} that its plain call keeps: {}", total.forgotten, total.saved,
                    why),
        std::move(cure));
    return true;
  }

  void look_at_random(const RegionTotal& total) {
    bool ignored = false;
    for_each_call(total.region, [&](const RegionCall& call) {
      ignored = ignored || (call.draws && call.kept_for(Why::Random).count() == 0);
    });
    if (!ignored) return;
    add(Rule::RandomNotReplayed, Severity::Warning, total.region, Bytes(0),
        "draws random numbers, and its replay draws others.",
        "Rng::Preserve, unless that is what you want.");
  }

  void look_at_attention(const RegionTotal& total) {
    Bytes attention;
    bool kept = false;
    std::string op;
    for_each_call(total.region, [&](const RegionCall& call) {
      for (const SavedByOperator& saver : call.savers) {
        if (saver.op.find("scaled_dot_product") == std::string::npos &&
            saver.op.find("flash_attention") == std::string::npos)
          continue;
        attention += saver.bytes;
        op = saver.op;
      }
      for (const KeptMemory& memory : call.kept) {
        kept = kept ||
               (memory.why == Why::Operator && memory.what.find("attention") != std::string::npos);
      }
    });
    if (kept || 2 * attention.count() < total.saved.count() || attention.count() == 0) return;
    add(Rule::Attention, Severity::Note, total.region, attention,
        fmt::format("replays {}, whose backward computes the scores anew by itself.", op),
        "policy::keep_attention() keeps its result and spares the second run.");
  }

  void look_at_the_peak() {
    const auto peak = ledger_.peak();
    if (!peak || ledger_.calls.empty()) return;
    std::string cure;
    switch (peak->phase) {
      case Phase::Region:
      case Phase::Replay:
        return;
      case Phase::Backward:
        if (peak->call >= 0 || !is_large(outside())) return;
        cure =
            "make a region of what follows the last one, the head and the loss most likely, or "
            "compute it in pieces.";
        break;
      case Phase::Loss:
        cure = "make a region of the head and the loss, or compute them in pieces.";
        break;
      case Phase::Forward:
        cure = "make a region of what runs there.";
        break;
      case Phase::Rest:
        cure = "an optimizer with less state, or one that updates in place.";
        break;
    }
    add(Rule::PeakOutside, Severity::Note, "", peak->live,
        fmt::format("the peak of {} lies in {}: more regions elsewhere lower it little.",
                    peak->live, place_text(ledger_, *peak)),
        std::move(cure));
  }

  /// What waited for backward beyond what regions keep.
  [[nodiscard]] Bytes outside() const {
    Bytes outside = ledger_.waiting().value_or(Bytes(0));
    for (const RegionTotal& total : totals_) outside -= total.keeps;
    return outside;
  }

  /// Beside what any one region rebuilds.
  [[nodiscard]] bool is_large(Bytes bytes) const {
    return std::all_of(totals_.begin(), totals_.end(), [&](const RegionTotal& total) {
      return bytes.count() > 2 * total.rebuilt_peak.count();
    });
  }

  void look_at_costs() {
    const std::vector<bool> needed = PlainAtNoCost::needed(ledger_);
    for (const RegionTotal& total : totals_) {
      if (total.replays == 0 || is_flagged(total.region)) continue;
      bool any = false;
      bool inside = false;
      for (std::size_t i = 0; i < ledger_.calls.size(); ++i) {
        if (ledger_.calls[i].region != total.region) continue;
        any = any || (needed[i] && !ledger_.calls[i].replays.empty());
        inside = inside || ledger_.calls[i].inside >= 0;
      }
      if (any) continue;
      add(Rule::OnlyCosts, Severity::Warning, total.region, total.forgotten,
          fmt::format("only costs: its replays take {:.2f} ms, and the peak of the step would be "
                      "no higher if it kept its {}.",
                      total.replay_seconds * kMilli, total.forgotten),
          inside ? "leave it plain: the region around it forgets all of this already."
                 : "leave it plain.");
    }
  }

  [[nodiscard]] bool is_flagged(const std::string& region) const {
    return std::any_of(findings_.begin(), findings_.end(), [&](const Finding& finding) {
      return finding.region == region &&
             (finding.rule == Rule::SavesLittle || finding.rule == Rule::NoGradient);
    });
  }

  /// An output that somebody else holds, while another region begins with as many bytes that were
  /// made of it.
  void look_at_outputs() {
    for (const RegionCall& later : ledger_.calls) {
      for (const KeptMemory& input : later.kept) {
        if (input.why != Why::Input || input.shared || input.made_from < 0) continue;
        const RegionCall& call = ledger_.calls[static_cast<std::size_t>(input.made_from)];
        const auto output =
            std::find_if(call.kept.begin(), call.kept.end(), [&](const KeptMemory& memory) {
              return memory.why == Why::Output && !memory.shared && memory.bytes == input.bytes;
            });
        if (output == call.kept.end() || has(Rule::OutputKeptTwice, call.region)) continue;
        add(Rule::OutputKeptTwice, Severity::Note, call.region, output->bytes,
            fmt::format("gives {} that stays, and `{}` keeps as much that was made of it.",
                        output->bytes, later.region),
            "move what runs between the two into one of them.");
      }
    }
  }

  [[nodiscard]] bool has(Rule rule, const std::string& region) const {
    return std::any_of(findings_.begin(), findings_.end(), [&](const Finding& finding) {
      return finding.rule == rule && finding.region == region;
    });
  }

  void look_at_the_cut() {
    constexpr double kClearly = 0.1;
    const auto peak = ledger_.peak();
    const auto cut = best_cut(ledger_);
    if (!peak || !cut) return;
    const double least = kClearly * static_cast<double>(peak->live.count());
    if (static_cast<double>(cut->gain.count()) < least) return;
    if (cut->is_chain) {
      add(Rule::FarFromBestCut, Severity::Note, "", cut->gain,
          fmt::format("{} segments of {} stages, the last of them plain, need about {} more than "
                      "{} would.",
                      cut->segments, cut->stages, cut->gain, cut->best),
          fmt::format("policy::segments({}), or refrain::fit() with the budget that you have.",
                      cut->best));
    } else {
      add(Rule::FarFromBestCut, Severity::Note, "", cut->gain,
          fmt::format(
              "{} regions keep an input each; about {} of several blocks each would need {} "
              "less.",
              cut->segments - 1, cut->best - 1, cut->gain),
          "put blocks that follow each other into one region: checkpoint(std::vector(blocks), "
          "policy).");
    }
  }

  const Ledger& ledger_;
  std::vector<RegionTotal> totals_;
  std::vector<Finding> findings_;
};

}  // namespace detail

/// What a recorded step shows of regions that gain nothing, and of what would gain more.
///
///     auto ledger = refrain::record(step);
///     fmt::print("{}\n", to_string(refrain::lint(ledger)));
///
/// `lint(model, inputs...)` finds more: it can look at the model, and check values. Time: calls
/// times samples of the timeline.
[[nodiscard]] inline std::vector<Finding> lint(const Ledger& ledger) {
  return detail::LedgerLint(ledger).run();
}

}  // namespace refrain
