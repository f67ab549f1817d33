// SPDX-License-Identifier: BSD-3-Clause
#include "support/messages.hpp"
#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/offload.hpp>
#include <refrain/tier/arena.hpp>
#include <refrain/tier/checked.hpp>
#include <refrain/tier/counted.hpp>
#include <refrain/tier/disk.hpp>
#include <refrain/tier/host.hpp>
#include <refrain/tier/limited.hpp>
#include <refrain/tier/quantized.hpp>
#include <refrain/tier/some.hpp>

#include <torch/torch.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
namespace tier = refrain::tier;
using refrain::AnyTier;
using refrain::Bytes;
using refrain::TierError;
using support::expect_says;
using torch::Tensor;

/// A folder of its own that goes with it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "refrain-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool is_empty() const { return fs::is_empty(path_); }

 private:
  std::string path_;
};

/// What four blocks give for one input, the last of them moved to `waits`; undefined: plainly.
Tensor gradient_of_a_chain(const AnyTier& waits) {
  torch::manual_seed(4);
  const auto w = torch::randn({64, 64}).div(8).requires_grad_();
  const auto block = [w](const Tensor& x) { return x.mm(w).tanh().mm(w); };
  auto moved = refrain::checkpoint(
      block, waits ? refrain::CheckpointOptions().tier(waits).saved(refrain::Saved::Moved)
                   : refrain::CheckpointOptions());
  auto h = torch::randn({256, 64});
  for (int i = 0; i < 4; ++i) h = waits ? moved(h) : block(h);
  h.sum().backward();
  return w.grad();
}

void expect_trains(const AnyTier& waits) {
  EXPECT_TRUE(torch::equal(gradient_of_a_chain(waits), gradient_of_a_chain({})));
}

TEST(TierFault, AFullTierSaysSoAndTrainingGoesOnWithAnother) {
  const std::vector<std::pair<AnyTier, std::string>> full = {
      {tier::limited(tier::host(), Bytes(100000)), "limited(host(), 97.66 KiB) has no room"},
      {tier::arena(Bytes(100000)), "arena(97.66 KiB) has no room for 64.00 KiB"},
      {tier::disk("/tmp", {.cap = Bytes(100000)}), "disk(\"/tmp\") may take 97.66 KiB"},
  };
  for (const auto& [waits, text] : full) {
    expect_says<TierError>({text.c_str(), "`a function` saved", "stay where they are"},
                           [&waits = waits] { gradient_of_a_chain(waits); });
    expect_trains(tier::arena(Bytes(1 << 22)));
    expect_trains(tier::limited(waits, Bytes(60000), tier::arena(Bytes(1 << 22))));
  }
}

TEST(TierFault, AFolderThatIsNotThereIsToldAtOnce) {
  expect_says<TierError>({"cannot make a file in `/nowhere/at/all`", "No such file"},
                         [] { static_cast<void>(tier::disk("/nowhere/at/all")); });
}

TEST(TierFault, AFolderThatGoesTakesNothingWithIt) {
  auto folder = std::make_unique<Folder>();
  const AnyTier waits = tier::disk(folder->path());
  expect_trains(waits);
  folder.reset();
  expect_trains(waits);
}

/// While it lives files may not grow beyond so many bytes.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(TierFault, ADiskThatIsFullLosesNothing) {
  const Folder folder;
  const AnyTier waits = tier::disk(folder.path(), {.on_the_way = Bytes(0)});
  {
    const FileLimit full(100000);
    expect_says<TierError>({"could not write", "the disk is full"},
                           [&] { gradient_of_a_chain(waits); });
  }
  // What failed was told, at most once more for what was on its way then.
  try {
    gradient_of_a_chain(waits);
  } catch (const TierError&) {
  }
  expect_trains(waits);
}

TEST(TierFault, WhatCannotBeWrittenIsStillThereForBackward) {
  const Folder folder;
  const AnyTier waits = tier::disk(folder.path());
  const auto contents = torch::arange(100000);
  std::unique_ptr<refrain::TierItem> item;
  {
    const FileLimit full(4096);
    item = waits.take(contents.clone());
    // The next one is told, once the first has failed.
    int told = 0;
    for (int i = 0; i < 10000 && told == 0; ++i) {
      try {
        static_cast<void>(waits.take(torch::zeros({1})));
      } catch (const TierError&) {
        ++told;
      }
    }
    EXPECT_EQ(told, 1);
  }
  EXPECT_TRUE(torch::equal(item->get(), contents));
}

/// The spill file of a folder, from outside.
int open_spill_file(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(folder + "/")) return ::open(entry.path().c_str(), O_RDWR);
  }
  return -1;
}

TEST(TierFault, AReadThatFailsIsToldAndEndsNothing) {
  const Folder folder;
  const AnyTier waits = tier::disk(folder.path(), {.on_the_way = Bytes(0)});
  const auto w = torch::randn({64, 64}).requires_grad_();
  auto block = refrain::offload([w](const Tensor& x) { return x.mm(w).tanh().exp().sin(); }, waits);
  const auto y = block(torch::randn({64, 64}));
  static_cast<void>(waits.take(torch::zeros({1})));  // the others are written once it may wait
  const int file = open_spill_file(folder.path());
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, 0), 0);
  ::close(file);
  expect_says<TierError>({"could not read", "it went on for 0 bytes only", "`a function` saved"},
                         [&] { y.sum().backward(); });
  expect_trains(waits);
}

TEST(TierFault, ACorruptedFileIsFoundByAChecksum) {
  const Folder folder;
  const AnyTier waits = tier::checked(tier::disk(folder.path(), {.on_the_way = Bytes(0)}));
  const auto item = waits.take(torch::arange(100000));
  const auto next = waits.take(torch::zeros({1}));
  static_cast<void>(waits.take(torch::zeros({1})));
  const int file = open_spill_file(folder.path());
  ASSERT_GE(file, 0);
  const char wrong = 'x';
  ASSERT_EQ(::pwrite(file, &wrong, 1, 5000), 1);
  ::close(file);
  expect_says<TierError>({"gave back something else than it took", "from byte 4096 on"},
                         [&] { static_cast<void>(item->get()); });
}

TEST(TierFault, NothingIsLeftOfACrash) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto folder = fs::temp_directory_path() / "refrain-crash-test";
  fs::create_directories(folder);
  EXPECT_EXIT(
      {
        const AnyTier waits = tier::disk(folder.string(), {.on_the_way = Bytes(0)});
        std::vector<std::unique_ptr<refrain::TierItem>> items;
        for (int i = 0; i < 8; ++i) items.push_back(waits.take(torch::ones({100000})));
        std::raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove_all(folder);
}

/// Fails where it is told to.
class Fails {
 public:
  struct How {
    bool take = false;
    bool get = false;
  };
  explicit Fails(std::shared_ptr<How> how) : how_(std::move(how)) {}
  std::unique_ptr<refrain::TierItem> take(const Tensor& contents) const {
    if (how_->take) throw std::runtime_error("the tape is torn");
    return std::make_unique<Item>(contents.clone(), how_);
  }
  static std::string describe() { return "tape"; }

 private:
  struct Item final : refrain::TierItem {
    Tensor contents;
    std::shared_ptr<How> how;
    Item(Tensor what, std::shared_ptr<How> fails)
        : contents(std::move(what)), how(std::move(fails)) {}
    Tensor get() override {
      if (how->get) throw std::runtime_error("the tape is torn");
      return contents;
    }
  };
  std::shared_ptr<How> how_;
};

/// What a child says of something that a forked process must not do; it is ended if it hangs.
template <class Work>
bool is_refused_as_forked(const Work& work) {
  try {
    work();
  } catch (const TierError& error) {
    return std::string(error.what()).find("forked") != std::string::npos;
  }
  return false;
}

TEST(TierFault, AForkedProcessIsToldToMakeItsOwnTier) {
  const Folder folder;
  auto waits = std::make_unique<tier::Disk>(tier::disk(folder.path(), {.on_the_way = Bytes(0)}));
  auto held = waits->take(torch::ones({1024}));
  (void)waits->take(torch::ones({1}));  // when it is taken, the first is written
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    const bool told = is_refused_as_forked([&] { (void)waits->take(torch::ones({1024})); }) &&
                      is_refused_as_forked([&] { (void)held->get(); });
    held.reset();
    waits.reset();  // its threads are not here to be waited for
    ::_exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(torch::equal(held->get(), torch::ones({1024})));
}

TEST(TierFault, ASizeThatIsNoWholeNumberOfPiecesIsHeldToTheLastByte) {
  const auto odd = torch::rand({25'000});
  const auto arena = tier::arena(Bytes(100'000));
  EXPECT_EQ(arena.capacity(), Bytes(100'000));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(arena.take(odd.clone())->get(), odd));
  const Folder folder;
  const auto disk = tier::disk(folder.path(), {.cap = Bytes(100'000)});
  EXPECT_EQ(disk.capacity(), Bytes(24 * 4096));
  const auto most = torch::ones({24 * 4096}, torch::kByte);
  EXPECT_TRUE(torch::equal(disk.take(most.clone())->get(), most));
  EXPECT_EQ(tier::disk(folder.path()).capacity(), refrain::kNoLimit);
}

/// Calls something while it takes, as another thread may.
struct Busy {
  std::function<void()> meanwhile;
  [[nodiscard]] std::unique_ptr<refrain::TierItem> take(const Tensor& contents) const {
    meanwhile();
    return tier::arena(Bytes(1 << 20)).take(contents);
  }
  [[nodiscard]] std::string describe() const { return "busy"; }
};

TEST(TierFault, WhatGoesBeyondALimitTakesNothingOfIt) {
  const auto within = tier::counted(tier::arena(Bytes(1 << 20)));
  const auto bytes = [](std::int64_t count) { return torch::ones({count}, torch::kByte); };
  AnyTier waits;
  std::unique_ptr<refrain::TierItem> small;
  bool asked = false;
  waits = tier::limited(within, Bytes(10'000), Busy{[&] {
                          if (!std::exchange(asked, true)) small = waits.take(bytes(8'000));
                        }});
  const auto large = waits.take(bytes(12'000));
  EXPECT_EQ(within.counts().bytes_held, Bytes(8'000));
  EXPECT_TRUE(torch::equal(small->get(), bytes(8'000)));
  EXPECT_TRUE(torch::equal(large->get(), bytes(12'000)));
}

TEST(TierFault, AUsersTierThatThrowsIsToldWithWhatItWasAskedFor) {
  const auto how = std::make_shared<Fails::How>();
  const AnyTier tape = Fails(how);
  how->take = true;
  expect_says<TierError>({"the tape is torn", "65536 bytes of float", "`a function` saved"},
                         [&] { gradient_of_a_chain(tape); });
  how->take = false;
  expect_trains(tape);
}

TEST(TierFault, ABackwardThatFailedMayBeTriedAgain) {
  const auto how = std::make_shared<Fails::How>();
  const auto x = torch::randn({64, 64}).requires_grad_();
  auto block = refrain::offload([](const Tensor& t) { return t.sin().exp().tanh().sum(); },
                                AnyTier(Fails(how)));
  const auto y = block(x);
  how->get = true;
  expect_says<TierError>({"the tape is torn", "asked for 16384 bytes"},
                         [&] { y.backward({}, /*retain_graph=*/true); });
  how->get = false;
  y.backward();
  const auto leaf = x.detach().clone().requires_grad_();
  leaf.sin().exp().tanh().sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), leaf.grad()));
}

TEST(TierFault, AFailureInARegionThatReplaysIsToldByTheNextOne) {
  const auto how = std::make_shared<Fails::How>();
  how->take = true;
  auto block = refrain::checkpoint([](const Tensor& t) { return t.sin().exp(); },
                                   refrain::CheckpointOptions().tier(AnyTier(Fails(how))));
  const auto x = torch::randn({64, 64}).requires_grad_();
  auto h = block(x * 2);
  expect_says<TierError>({"the tape is torn"}, [&] { block(h); });
  h.sum().backward();  // the first region's input is where it was
  const auto leaf = x.detach().clone().requires_grad_();
  (leaf * 2).sin().exp().sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), leaf.grad()));
}

/// Throws what is no exception, or gives back too little.
class Odd {
 public:
  enum class Way { ThrowsANumber, GivesTooLittle };
  explicit Odd(Way way) : way_(way) {}
  std::unique_ptr<refrain::TierItem> take(const Tensor& contents) const {
    if (way_ == Way::ThrowsANumber) throw 42;
    return std::make_unique<Item>(contents.clone());
  }
  static std::string describe() { return "odd"; }

 private:
  struct Item final : refrain::TierItem {
    Tensor contents;
    explicit Item(Tensor what) : contents(std::move(what)) {}
    Tensor get() override { return contents.narrow(0, 0, contents.numel() / 2); }
  };
  Way way_;
};

TEST(TierFault, AUsersTierThatDoesAnythingElseIsToldToo) {
  expect_says<TierError>({"`a function`", "odd"},
                         [] { gradient_of_a_chain(AnyTier(Odd(Odd::Way::GivesTooLittle))); });
  expect_says<TierError>({"odd threw something that is not a std::exception"},
                         [] { gradient_of_a_chain(AnyTier(Odd(Odd::Way::ThrowsANumber))); });
}

TEST(TierFault, MemoryThatWasResizedStays) {
  auto block = refrain::offload([](const Tensor& t) { return t.sin().sum(); },
                                AnyTier(tier::arena(Bytes(1 << 20))));
  Tensor x = torch::randn({64, 64}).requires_grad_() * 2;
  const auto y = block(x);
  x.storage().unsafeGetStorageImpl()->set_nbytes(0);
  x.reset();
  block(torch::randn({64, 64}).requires_grad_());  // looks at what waits
}

TEST(TierFault, AFailedFetchAheadIsNobodysUntilItIsAskedFor) {
  struct Item final : refrain::TierItem {
    Tensor contents;
    explicit Item(Tensor what) : contents(std::move(what)) {}
    void fetch() override { throw std::runtime_error("not now"); }
    Tensor get() override { return contents; }
  };
  struct Hasty {
    static std::unique_ptr<refrain::TierItem> take(const Tensor& contents) {
      return std::make_unique<Item>(contents.clone());
    }
    static std::string describe() { return "hasty"; }
  };
  expect_trains(AnyTier(Hasty()));
}

TEST(TierOption, ThatMeansNothingIsRefused) {
  expect_says<refrain::OptionError>({"-1 B on the way"},
                                    [] { static_cast<void>(tier::host(Bytes(-1))); });
  expect_says<refrain::OptionError>({"-1 B on the way"}, [] {
    static_cast<void>(tier::disk("/tmp", {.on_the_way = Bytes(-1)}));
  });
  expect_says<refrain::OptionError>({"8 or 4 bits"},
                                    [] { static_cast<void>(tier::quantized(tier::host(), 5)); });
  expect_says<refrain::OptionError>({"between 0 and 1"},
                                    [] { static_cast<void>(tier::fraction(tier::host(), 1.5)); });
  expect_says<refrain::OptionError>({"not less than none"},
                                    [] { static_cast<void>(tier::first(tier::host(), -1)); });
  expect_says<refrain::OptionError>({"at least one byte"},
                                    [] { static_cast<void>(tier::arena(Bytes(0))); });
  expect_says<refrain::OptionError>(
      {"not negative"}, [] { static_cast<void>(tier::limited(tier::host(), Bytes(-1))); });
}

TEST(QuantizedTier, StaysWithinItsBound) {
  torch::manual_seed(6);
  for (const std::int64_t bits : {8, 4}) {
    const AnyTier waits = tier::quantized(tier::arena(Bytes(1 << 24)), bits);
    const double steps = bits == 8 ? 127 : 7;
    for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kDouble}) {
      for (const std::int64_t count : {1, 63, 64, 1000, 600001}) {
        const auto x = (torch::randn({count}) * torch::logspace(-3, 3, count)).to(dtype);
        const auto back = waits.take(x.clone())->get();
        EXPECT_EQ(back.scalar_type(), dtype);
        const auto padded =
            torch::constant_pad_nd(x.to(torch::kDouble), {0, (64 - count % 64) % 64})
                .view({-1, 64});
        const auto step = padded.abs().amax(1, true) / steps;
        const auto error =
            torch::constant_pad_nd((back - x).to(torch::kDouble).abs(), {0, (64 - count % 64) % 64})
                .view({-1, 64});
        const auto own = dtype == torch::kBFloat16 ? 1.0 / 256
                         : dtype == torch::kHalf   ? 1.0 / 2048
                                                   : 0;
        EXPECT_TRUE((error <= step / 2 * 1.0001 + own * step * steps * 1.01 + 1e-7 * step * steps)
                        .all()
                        .item<bool>())
            << bits << " " << dtype << " " << count;
      }
    }
  }
}

TEST(QuantizedTier, LeavesWhatItCannotHoldAsItIs) {
  for (const float extreme : {std::numeric_limits<float>::max(), 1.8e-43F}) {
    const AnyTier eight = tier::quantized(tier::arena(Bytes(1 << 20)), 8);
    const auto x = torch::full({130}, extreme);
    EXPECT_TRUE(torch::equal(eight.take(x.clone())->get(), x)) << extreme;
  }
  const AnyTier waits = tier::quantized(tier::arena(Bytes(1 << 24)), 8);
  const auto infinite = torch::tensor({1.0F, std::numeric_limits<float>::infinity()}).repeat({999});
  EXPECT_TRUE(torch::equal(waits.take(infinite.clone())->get(), infinite));
  const auto indices = torch::arange(12345);
  EXPECT_TRUE(torch::equal(waits.take(indices.clone())->get(), indices));
  const auto zeros = torch::zeros({12345});
  EXPECT_TRUE(torch::equal(waits.take(zeros.clone())->get(), zeros));
}

TEST(QuantizedTier, LeavesTheForwardExactAndTheGradientsNear) {
  const auto exact = gradient_of_a_chain({});
  for (const std::int64_t bits : {8, 4}) {
    const auto near = gradient_of_a_chain(tier::quantized(tier::host(), bits));
    const double error = ((near - exact).norm() / exact.norm()).item<double>();
    EXPECT_GT(error, 0);
    EXPECT_LT(error, bits == 8 ? 0.02 : 0.3);
  }
}

TEST(SomeOfATier, FirstTakesTheFirstOfEachStep) {
  const AnyTier two = tier::first(tier::arena(Bytes(1 << 20)), 2);
  for (int step = 0; step < 3; ++step) {
    std::vector<std::unique_ptr<refrain::TierItem>> items;
    for (int i = 0; i < 5; ++i) items.push_back(two.take(torch::ones({100})));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(items[static_cast<std::size_t>(i)] != nullptr, i < 2);
  }
}

TEST(SomeOfATier, FractionSpreadsOverAStep) {
  const AnyTier third = tier::fraction(tier::arena(Bytes(1 << 20)), 1.0 / 3);
  std::vector<std::unique_ptr<refrain::TierItem>> items;
  std::string taken;
  for (int i = 0; i < 9; ++i) {
    items.push_back(third.take(torch::ones({100})));
    taken += items.back() == nullptr ? '-' : 'x';
  }
  EXPECT_EQ(taken, "--x--x--x");
}

}  // namespace
