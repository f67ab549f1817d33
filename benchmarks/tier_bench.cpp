// SPDX-License-Identifier: BSD-3-Clause
// What do tiers cost? GiB/s out and back of each, beside memcpy and a disk written and read without
// them; what a moved tensor costs beside its bytes; what a chain of regions frees; and, on the test
// accelerator, how much of its copies a step hides behind its work, with fetching ahead and
// without.
#include "support/fake_accelerator.hpp"
#include <refrain/bytes.hpp>
#include <refrain/memory.hpp>
#include <refrain/offload.hpp>
#include <refrain/tier/arena.hpp>
#include <refrain/tier/checked.hpp>
#include <refrain/tier/counted.hpp>
#include <refrain/tier/disk.hpp>
#include <refrain/tier/host.hpp>
#include <refrain/tier/quantized.hpp>

#include <torch/torch.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using nlohmann::json;
using refrain::AnyTier;
using refrain::Bytes;
using torch::Tensor;
namespace tier = refrain::tier;
using Clock = std::chrono::steady_clock;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr std::int64_t kBytes = std::int64_t{64} << 20;
constexpr int kTensors = 4;

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds to take, and to give back, all tensors.
struct Both {
  std::vector<double> out;
  std::vector<double> back;
};

void through(const AnyTier& waits, const std::vector<Tensor>& tensors, Both& times) {
  std::vector<Tensor> contents;
  for (const Tensor& tensor : tensors) contents.push_back(tensor.clone());
  std::vector<std::unique_ptr<refrain::TierItem>> items;
  times.out.push_back(seconds_of([&] {
    for (Tensor& tensor : contents) {
      items.push_back(waits.take(tensor));
      tensor.reset();
    }
  }));
  // Whatever is still on its way out is not counted as back.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  times.back.push_back(seconds_of([&] {
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      if (item + 1 != items.rend()) (*(item + 1))->fetch();
      static_cast<void>((*item)->get());
    }
  }));
}

void memcpy_there_and_back(const std::vector<Tensor>& tensors, Both& times) {
  std::vector<Tensor> there;
  for (const Tensor& tensor : tensors) there.push_back(torch::zeros_like(tensor));
  const auto copy = [](const Tensor& from, const Tensor& to) {
    std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  };
  times.out.push_back(seconds_of([&] {
    for (std::size_t i = 0; i < tensors.size(); ++i) copy(tensors[i], there[i]);
  }));
  times.back.push_back(seconds_of([&] {
    for (std::size_t i = 0; i < tensors.size(); ++i) copy(there[i], tensors[i]);
  }));
}

/// A file written, and read, past the cache in pieces of 8 MiB: what `dd oflag=direct` does.
void disk_alone(const std::string& folder, Both& times) {
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  if (file < 0) return;
  std::unique_ptr<char, void (*)(void*)> piece(static_cast<char*>(std::aligned_alloc(4096, kPiece)),
                                               &std::free);
  std::memset(piece.get(), 1, kPiece);
  constexpr auto kAll = static_cast<std::int64_t>(kTensors) * kBytes;
  const auto pass = [&](auto&& call) {
    for (std::int64_t at = 0; at < kAll; at += static_cast<std::int64_t>(kPiece))
      if (call(file, piece.get(), kPiece, at) < 0) std::perror("tier_bench");
  };
  times.out.push_back(seconds_of([&] { pass(::pwrite); }));
  times.back.push_back(seconds_of([&] { pass(::pread); }));
  ::close(file);
}

json rates(const std::string& folder) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < kTensors; ++i) tensors.push_back(torch::rand({kBytes / 4}));
  const std::vector<std::pair<std::string, AnyTier>> tiers = {
      {"arena", tier::arena(Bytes(kTensors * kBytes))},
      {"checked(arena)", tier::checked(tier::arena(Bytes(kTensors * kBytes)))},
      {"quantized(host, 8)", tier::quantized(tier::host(), 8)},
      {"quantized(host, 4)", tier::quantized(tier::host(), 4)},
      {"disk", tier::disk(folder, {.on_the_way = Bytes(0)})}};
  std::vector<Both> times(tiers.size() + 2);
  constexpr int kRounds = 5;
  for (int round = 0; round < kRounds; ++round) {
    memcpy_there_and_back(tensors, times[0]);
    disk_alone(folder, times[1]);
    for (std::size_t i = 0; i < tiers.size(); ++i) through(tiers[i].second, tensors, times[i + 2]);
  }
  auto rows = json::array();
  const double all = static_cast<double>(kTensors * kBytes) / kGiB;
  fmt::print("| where | out, GiB/s | back, GiB/s |\n|---|---|---|\n");
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i].out.empty()) continue;
    const std::string name = i == 0   ? "memcpy, one thread"
                             : i == 1 ? "the disk alone"
                                      : tiers[i - 2].first;
    const double out = all / median(times[i].out);
    const double back = all / median(times[i].back);
    fmt::print("| {} | {:.2f} | {:.2f} |\n", name, out, back);
    rows.push_back({{"where", name}, {"out_gib_per_s", out}, {"back_gib_per_s", back}});
  }
  return rows;
}

/// Beside its bytes: a tensor of one page, moved and brought back, less the same kept.
json overhead() {
  constexpr int kCalls = 200;
  const auto chain = [](const Tensor& x) {
    Tensor h = x;
    for (int i = 0; i < 50; ++i) h = h.sin();
    return h;
  };
  const auto x = torch::rand({1024}).requires_grad_();
  const auto step = [&](auto&& call) {
    return 1e6 * seconds_of([&] { call(x * 1).sum().backward(); }) / 49;
  };
  auto moved = refrain::offload(chain, AnyTier(tier::arena(Bytes(1 << 22))));
  auto stays = refrain::offload(chain, AnyTier(tier::host()));
  std::vector<double> plain_us;
  std::vector<double> moved_us;
  std::vector<double> stays_us;
  for (int i = 0; i < kCalls; ++i) {
    plain_us.push_back(step(chain));
    moved_us.push_back(step(moved));
    stays_us.push_back(step(stays));
  }
  const double plain = median(plain_us);
  fmt::print(
      "\na tensor of 4 KiB costs {:.1f} us in an arena, {:.1f} us where it stays on the host, "
      "beyond the plain {:.1f} us\n",
      median(moved_us) - plain, median(stays_us) - plain, plain);
  return {{"arena_us", median(moved_us) - plain},
          {"host_us", median(stays_us) - plain},
          {"plain_us", plain}};
}

/// What regions' inputs, moved, free of what lives when backward begins.
json freed() {
  constexpr int kLayers = 24;
  constexpr std::int64_t kBoundary = std::int64_t{1024} * 256 * 4;
  const auto w = torch::rand({256, 256}).requires_grad_();
  const auto block = [w](const Tensor& x) { return x.mm(w).tanh(); };
  const auto held = [&](const refrain::CheckpointOptions& options) {
    auto region = refrain::checkpoint(block, options);
    const auto before = refrain::memory().live;
    auto h = torch::rand({1024, 256});
    for (int i = 0; i < kLayers; ++i) h = region(h);
    return refrain::memory().live - before;
  };
  const auto kept = held({});
  const auto moved = held(refrain::CheckpointOptions().tier(
      tier::quantized(tier::counted(tier::arena(Bytes(1 << 26))), 8)));
  const auto expected = Bytes((kLayers - 1) * kBoundary);
  fmt::print(
      "{} regions: {} live after the forward, {} with their inputs moved: {} freed of {} "
      "({} boundaries)\n",
      kLayers, kept, moved, kept - moved, expected, kLayers - 1);
  return {{"kept", kept.count()}, {"moved", moved.count()}, {"boundaries", expected.count()}};
}

/// Never fetches ahead.
class Unhurried {
 public:
  explicit Unhurried(AnyTier upstream) : upstream_(std::move(upstream)) {}
  [[nodiscard]] std::unique_ptr<refrain::TierItem> take(const Tensor& contents) const {
    return std::make_unique<Item>(upstream_.take(contents));
  }
  static std::string describe() { return "unhurried"; }

 private:
  struct Item final : refrain::TierItem {
    std::unique_ptr<refrain::TierItem> upstream;
    explicit Item(std::unique_ptr<refrain::TierItem> item) : upstream(std::move(item)) {}
    Tensor get() override { return upstream->get(); }
  };
  AnyTier upstream_;
};

/// Copies take `share` of the time that a block computes.
json hidden(double share) {
  const support::AsyncScope threads(support::Async::Threads);
  constexpr double kKernel = 4e-3;
  constexpr int kLayers = 12;
  constexpr int kKernelsForward = 2;  // of a block: mm, tanh
  constexpr std::int64_t kBoundary = 256 * 256 * 4;
  const double block_seconds = kKernelsForward * kKernel;
  const double copy_seconds = share * block_seconds;
  const auto device = support::fake_device(0);
  const auto w = torch::rand({256, 256}).to(device).requires_grad_();
  const auto x = torch::rand({256, 256}).to(device);
  const auto block = [w](const Tensor& t) { return t.mm(w).tanh(); };
  const auto step = [&](auto& call) {
    return seconds_of([&] {
      auto h = x * 1;
      for (int i = 0; i < kLayers; ++i) h = call(h);
      h.backward(h.detach());
      at::accelerator::synchronizeDevice(0);
    });
  };
  auto replays = refrain::checkpoint(block);
  const auto with = [&](AnyTier waits) {
    return refrain::checkpoint(block, refrain::CheckpointOptions().tier(std::move(waits)));
  };
  auto ahead = with(tier::host(Bytes(kBoundary)));
  auto late = with(Unhurried(tier::host(Bytes(kBoundary))));
  support::fake::kernel_seconds(kKernel);
  support::fake::copy_rate(static_cast<double>(kBoundary) / copy_seconds);
  std::vector<double> base;
  std::vector<double> prefetched;
  std::vector<double> unhurried;
  for (int i = 0; i < 5; ++i) {
    base.push_back(step(replays));
    prefetched.push_back(step(ahead));
    unhurried.push_back(step(late));
  }
  const double copies = 2 * (kLayers - 1) * copy_seconds;
  const double stall = std::max(0.0, median(prefetched) - median(base));
  const double stall_late = std::max(0.0, median(unhurried) - median(base));
  fmt::print("| {:.0f} % | {:.1f} ms | {:.1f} ms | {:.1f} ms | {:.0f} % | {:.0f} % |\n",
             100 * share, 1e3 * copies, 1e3 * stall, 1e3 * stall_late, 100 * (1 - stall / copies),
             100 * (1 - stall_late / copies));
  return {{"copy_share_of_compute", share},
          {"copies_s", copies},
          {"stall_s", stall},
          {"stall_without_prefetch_s", stall_late}};
}

/// In a process of its own: an accelerator concerns all of it.
void on_the_accelerator(const std::string& path) {
  support::install_fake_accelerator();
  fmt::print(
      "\n| on the test accelerator a copy takes, of a block's forward | all copies | stall | "
      "without fetching ahead | hidden | without |\n|---|---|---|---|---|---|\n");
  auto rows = json::array();
  for (const double share : {0.25, 0.5, 1.0}) rows.push_back(hidden(share));
  std::ofstream(path) << rows.dump(2) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const auto results_folder = std::filesystem::path(REFRAIN_RESULTS);
  const auto hidden_path = (results_folder / "tier_bench_hidden.json").string();
  if (argc > 1 && std::string(argv[1]) == "accelerator") {
    on_the_accelerator(hidden_path);
    return EXIT_SUCCESS;
  }
  refrain::count_cpu_memory();
  const std::string folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
  json results;
  results["rates"] = rates(folder);
  results["overhead"] = overhead();
  results["freed"] = freed();
  std::fflush(stdout);
  if (std::system(fmt::format("\"{}\" accelerator", argv[0]).c_str()) != 0) return EXIT_FAILURE;
  results["hidden"] = json::parse(std::ifstream(hidden_path));
  const auto path = results_folder / "tier_bench.json";
  std::ofstream(path) << results.dump(2) << "\n";
  fmt::print("\nmedians of interleaved rounds; numbers in {}\n", path.string());
}
