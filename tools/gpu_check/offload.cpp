// SPDX-License-Identifier: BSD-3-Clause
//
// Memory that waits on the host: right while others allocate, and beside the device's work.
#include "models.hpp"
#include "steps.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/ledger.hpp>
#include <refrain/offload.hpp>
#include <refrain/record.hpp>
#include <refrain/tier/counted.hpp>
#include <refrain/tier/host.hpp>

#include <atomic>
#include <limits>
#include <thread>

namespace gpu_check {
namespace {

using refrain::CheckpointOptions;
using refrain::Saved;
namespace tier = refrain::tier;

/// Takes memory, fills it with nonsense and gives it back, on a thread beside the caller's: memory
/// that was let go too early does not stay as it was.
class Pressure {
 public:
  Pressure(const Where& where, std::int64_t side)
      : thread_([this, where, side] {
          const torch::NoGradGuard no_grad;
          for (std::int64_t i = 0; !done_; ++i) {
            const auto rows = side - (i * 37) % (side / 2);
            (void)torch::full({rows, side}, std::numeric_limits<float>::quiet_NaN(), where.device);
            if (i % 16 == 0) synchronize(where);
          }
        }) {}
  ~Pressure() {
    done_ = true;
    thread_.join();
  }
  Pressure(const Pressure&) = delete;
  Pressure& operator=(const Pressure&) = delete;

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

Outcome stays_exact(const Where& where) {
  const int rounds = where.size(200, 20);
  const std::int64_t side = where.size(1024, 64);
  const auto block = [side](const Tensor& x, const Tensor& w) {
    // Of the same size, on the same stream: gets memory that was just let go.
    const auto noise = torch::full_like(x, std::numeric_limits<float>::quiet_NaN());
    return x.mm(w).tanh().mm(w) / static_cast<double>(side) * 8 + noise.isnan().to(x.dtype());
  };
  const auto waits = tier::counted(tier::host(/*on_the_way=*/refrain::Bytes(0)));
  const auto moved = refrain::checkpoint(
      block, CheckpointOptions().tier(refrain::AnyTier(waits)).saved(Saved::Moved));
  const auto replayed =
      refrain::checkpoint(block, CheckpointOptions().tier(refrain::AnyTier(waits)));
  const Pressure pressure(where, side);
  for (int round = 0; round < rounds; ++round) {
    const auto step = [&] {
      std::vector<Tensor> weights;
      for (int i = 0; i < 5; ++i) weights.push_back(leaf(where, {side, side}));
      const auto x = leaf(where, {side, side});
      Tensor h = x * 2;
      for (const Tensor& w : weights) h = round % 2 == 0 ? moved(h, w) : replayed(h, w);
      loss(h).backward();
      std::vector<Tensor> got{x.grad()};
      for (const Tensor& w : weights) got.push_back(w.grad());
      return got;
    };
    try {
      require_same(where, step, static_cast<std::uint64_t>(round));
    } catch (const std::exception& error) {
      return failed(fmt::format("round {}: {}", round, error.what()));
    }
  }
  const auto counts = waits.counts();
  require(counts.moved > 0, "nothing was moved");
  require(counts.held == 0, fmt::format("{} storages are still held", counts.held));
  return passed(fmt::format("{} rounds, {} moved", rounds, counts.bytes_moved));
}

/// Transformer blocks of which each is replayed, their inputs in a tier or not.
class LongSequences {
 public:
  explicit LongSequences(const Where& where)
      : where_(where),
        width_(where.size(2048, 64)),
        tokens_(where.size(8192, 64)),
        dtype_(where.size(at::kBFloat16, at::kFloat)) {
    torch::manual_seed(1);
    const int layers = where.size(16, 6);
    for (int i = 0; i < layers; ++i) {
      bench::GptBlock block(width_, where.size(16, 4));
      block->to(where.device, dtype_);
      for (Tensor& parameter : block->parameters())
        parameter.mutable_grad() = torch::zeros_like(parameter);
      stays_.push_back(refrain::checkpoint(block, CheckpointOptions().name("block")));
      waits_.push_back(refrain::checkpoint(
          block, CheckpointOptions().name("block").tier(refrain::AnyTier(tier_))));
    }
    x_ = torch::randn({1, tokens_, width_}, where.device).to(dtype_);
  }

  enum class Inputs { Stay, Wait };

  /// The tier lets go of what has arrived when it takes the next.
  void settle() const {
    synchronize(where_);
    (void)tier_.take(torch::zeros({4096}, where_.device));
  }

  /// What lived at the end of forward, beyond what did before, when all copies are done.
  std::int64_t step(Inputs inputs) const {
    const auto before = live(where_);
    Tensor h = x_ * 1;  // nobody else holds it
    for (auto& block : inputs == Inputs::Wait ? waits_ : stays_) h = block(h);
    // A head that is a region too, so that the last block's input can go.
    const auto head = refrain::checkpoint([](const Tensor& t) { return t.square().mean(); },
                                          inputs == Inputs::Wait
                                              ? CheckpointOptions().tier(refrain::AnyTier(tier_))
                                              : CheckpointOptions());
    const Tensor y = head(h);
    std::int64_t waiting = 0;
    if (measuring_) {
      settle();
      waiting = live(where_) - before;
    }
    y.backward();
    return waiting;
  }

  std::int64_t waiting(Inputs inputs) {
    (void)step(inputs);
    settle();
    measuring_ = true;
    const auto bytes = step(inputs);
    measuring_ = false;
    return bytes;
  }

  /// What the ledger of a step says that the blocks' inputs keep on the device.
  [[nodiscard]] refrain::Bytes promised() const {
    const auto ledger = refrain::record([this] { (void)step(Inputs::Stay); });
    refrain::Bytes sum;
    for (const auto& call : ledger.calls) {
      if (call.region == "block") sum += call.kept_for(refrain::KeptMemory::Why::Input);
    }
    return sum;
  }

  /// Of all blocks.
  [[nodiscard]] refrain::Bytes inputs() const {
    return refrain::Bytes(static_cast<std::int64_t>(x_.nbytes() * stays_.size()));
  }

  /// Seconds that the copies of one step take alone, there and back.
  [[nodiscard]] double copying() const {
    const auto host = torch::empty(x_.sizes(), torch::dtype(dtype_).pinned_memory(where_.on_gpu()));
    const auto once = [&] {
      host.copy_(x_, /*non_blocking=*/true);
      x_.copy_(host, /*non_blocking=*/true);
    };
    return medians(where_, 5, {once})[0] * static_cast<double>(stays_.size());
  }

  [[nodiscard]] refrain::tier::Counts counts() const { return tier_.counts(); }

 private:
  using Block = refrain::Checkpoint<bench::GptBlock>;

  const Where& where_;
  std::int64_t width_;
  std::int64_t tokens_;
  at::ScalarType dtype_;
  tier::Counted tier_ = tier::counted(tier::host());
  mutable std::vector<Block> stays_;
  mutable std::vector<Block> waits_;
  Tensor x_;
  bool measuring_ = false;
};

using Inputs = LongSequences::Inputs;

Outcome frees_what_was_promised(const Where& where) {
  LongSequences model(where);
  const auto promised = model.promised();
  require(promised == model.inputs(),
          fmt::format("the ledger promises {}, the inputs are {}", promised, model.inputs()));
  if (!where.on_gpu()) return skipped("on the host nothing is freed by moving there");
  const auto freed = model.waiting(Inputs::Stay) - model.waiting(Inputs::Wait);
  const auto peak = [&](Inputs inputs) {
    model.settle();
    return peak_of(where, [&] { (void)model.step(inputs); });
  };
  const auto lower = peak(Inputs::Stay) - peak(Inputs::Wait);
  return at_least(99.5, 100 * static_cast<double>(freed) / static_cast<double>(promised.count()),
                  "%",
                  fmt::format("{} of the ledger's {} once copies have arrived; the step's peak is "
                              "{} lower",
                              refrain::Bytes(freed), promised, refrain::Bytes(lower)));
}

Outcome costs_little(const Where& where) {
  const LongSequences model(where);
  const auto took =
      medians(where, where.size(11, 3),
              {[&] { (void)model.step(Inputs::Stay); }, [&] { (void)model.step(Inputs::Wait); }});
  require(model.counts().moved > 0, "nothing was moved");
  const double copying = model.copying();
  const double hidden = 100 * (1 - (took[1] - took[0]) / copying);
  return at_most(
      2, 100 * (took[1] / took[0] - 1), "% of a step",
      fmt::format("a step takes {:.2f} ms, and {:.2f} ms with the tier; its copies alone "
                  "take {:.2f} ms, of which {:.0f} % are hidden",
                  took[0] * 1e3, took[1] * 1e3, copying * 1e3, hidden));
}

}  // namespace

void add_offload(Checks& checks) {
  checks.group("offload");
  checks.check("exact under allocation pressure", stays_exact);
  checks.check("frees what the ledger promised", frees_what_was_promised);
  checks.check("block inputs go out and come back beside the work", costs_little);
}

}  // namespace gpu_check
