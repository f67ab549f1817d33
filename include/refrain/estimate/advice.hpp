// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/estimate/sweep.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

namespace refrain::estimate {

enum class Verdict {
  StoreAll,      ///< It fits as it is.
  Checkpoint,    ///< It fits with `interval`.
  SmallerBatch,  ///< It fits with `interval` and `batch`.
  Shrink,        ///< Not even one sample fits: fewer bytes of state, or more devices.
};

enum class Why {
  Fits,
  DoesNotFit,
  NoIntervalFits,
  CheapestThatFits,
  BytesSetTheInterval,
  FlashRecomputesTwice,
  FlashInsteadOfReplays,
  DropoutHindersEarlyStop,
  LossSetsThePeak,
  NotEvenOneSample,
};

struct Reason {
  Why why = Why::Fits;
  std::string text;  ///< A sentence with the numbers.
};

struct Advice {
  Verdict verdict = Verdict::StoreAll;
  std::int64_t interval = 0;  ///< Blocks a segment; all of them: store all.
  std::int64_t batch = 0;
  StepEstimate step;  ///< With that interval and batch.
  std::vector<Reason> reasons;
};

/// The verdict, then a line a reason.
[[nodiscard]] inline std::string to_string(const Advice& advice) {
  const std::string cut = advice.step.overhead > 0
                              ? fmt::format("checkpoint segments of {}", advice.interval)
                              : "store all";
  std::string text;
  switch (advice.verdict) {
    case Verdict::StoreAll:
      text = "store all: no checkpointing";
      break;
    case Verdict::Checkpoint:
      text = cut;
      break;
    case Verdict::SmallerBatch:
      text = fmt::format("batch {}, {}", advice.batch, cut);
      break;
    case Verdict::Shrink:
      text = "does not fit, not even one sample";
      break;
  }
  for (const Reason& reason : advice.reasons) text += "\n  " + reason.text;
  return text;
}

}  // namespace refrain::estimate
