// SPDX-License-Identifier: BSD-3-Clause
#include "support/live_bytes.hpp"
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/run_counter.hpp"
#include "support/twin.hpp"
#include <refrain/bytes.hpp>
#include <refrain/checkpoint.hpp>
#include <refrain/keep.hpp>
#include <refrain/ledger_file.hpp>
#include <refrain/ledger_totals.hpp>
#include <refrain/offload.hpp>
#include <refrain/policy.hpp>
#include <refrain/record.hpp>
#include <refrain/tier/arena.hpp>
#include <refrain/tier/counted.hpp>
#include <refrain/tier/host.hpp>
#include <refrain/tier/quantized.hpp>
#include <refrain/verify.hpp>

#include <torch/torch.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using refrain::AnyTier;
using refrain::Bytes;
using refrain::CheckpointOptions;
using refrain::Saved;
using support::message_of;
using testing::HasSubstr;
using torch::Tensor;
namespace tier = refrain::tier;

constexpr std::int64_t kRow = 64 * 64 * 4;  ///< Bytes of a 64 by 64 matrix.

tier::Counted arena() { return tier::counted(tier::arena(Bytes(32 << 20))); }

Tensor matrix() { return torch::randn({64, 64}); }

TEST(Offload, RunsTheBodyOnce) {
  support::RunCounter ran;
  const auto waits = arena();
  auto layer = refrain::offload(
      [ran](const Tensor& x) {
        ++ran;
        return x.sin().exp().tanh();
      },
      AnyTier(waits));
  const auto x = matrix().requires_grad_();
  layer(x * 2).sum().backward();
  EXPECT_EQ(ran.runs(), 1);
  EXPECT_TRUE(x.grad().defined());
  EXPECT_GT(waits.counts().moved, 0);
}

TEST(Offload, MovesEachStorageOnce) {
  const auto waits = arena();
  auto layer = refrain::offload(
      [](const Tensor& x) {
        const auto a = x.sin();  // saves x
        const auto b = a.exp();  // saves b
        return b.mm(b.t()).sum() + b.view({32, 128}).tanh().sum() + b.narrow(0, 3, 5).sin().sum();
      },
      AnyTier(waits));
  layer(matrix().requires_grad_() * 2).backward();
  // b, through four nodes; tanh's result; the input of sin was the caller's until the end.
  EXPECT_EQ(waits.counts().bytes_moved, Bytes(2 * kRow));
  EXPECT_EQ(waits.counts().moved, 2);
  EXPECT_EQ(waits.counts().fetched, 2);
}

TEST(Offload, LeavesWhatIsAliveAnyway) {
  const auto waits = arena();
  const auto w = matrix().requires_grad_();
  const auto mask = torch::rand({64, 64});
  const auto x = matrix().requires_grad_() * 2;
  auto layer = refrain::offload([&](const Tensor& t) { return (t * mask).mm(w) + t.mm(w.t()); },
                                AnyTier(waits));
  const auto y = layer(x);
  const auto again = layer(x);
  EXPECT_EQ(waits.counts().moved, 2) << "t * mask, twice";
  (y + again).sum().backward();
}

TEST(Offload, MovesOnlyThePartOfAStorageThatIsRead) {
  const auto waits = arena();
  auto layer = refrain::offload(
      [](const Tensor& x) {
        const auto large = x.repeat({8, 1}) * 1.0;
        return large.narrow(0, 64, 64).sin().sum();
      },
      AnyTier(waits));
  const auto x = matrix().requires_grad_();
  layer(x).backward();
  EXPECT_EQ(waits.counts().bytes_moved, Bytes(kRow));
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().cos()));
}

TEST(Offload, MemorySeenThroughSeveralTypesComesBackToEach) {
  const auto waits = arena();
  auto layer = refrain::offload(
      [](const Tensor& x) {
        const auto flat = (x * 1.0).view({-1});
        const auto odd = flat.narrow(0, 3, 2000);
        const auto pairs = torch::view_as_complex(flat.narrow(0, 6, 2000).view({1000, 2}));
        return odd.sin().sum() + torch::abs(pairs * pairs).sum();
      },
      AnyTier(waits));
  const auto x = matrix().requires_grad_();
  const auto gradient = [&](auto&& call) {
    call(x).backward();
    return std::exchange(x.mutable_grad(), {});
  };
  const auto moved = gradient(layer);
  const refrain::PlainScope plain;
  EXPECT_TRUE(torch::equal(moved, gradient(layer)));
  EXPECT_GT(waits.counts().moved, 0);
}

TEST(Offload, TinyTensorsStay) {
  const auto waits = arena();
  auto layer =
      refrain::offload([](const Tensor& x) { return x.sin().exp().tanh(); }, AnyTier(waits));
  layer(torch::randn({31, 32}).requires_grad_() * 2).sum().backward();
  EXPECT_EQ(waits.counts().moved, 0);
}

TEST(Offload, ServesModulesAndChains) {
  for (int kind = 0; kind < 3; ++kind) {
    const auto waits = arena();
    const auto run = [&](bool moved) {
      torch::manual_seed(3);
      std::vector<support::Mlp> layers;
      for (int i = 0; i < 4; ++i) layers.emplace_back(64, 0.2);
      torch::nn::Sequential chain;
      for (const auto& layer : layers) chain->push_back(layer);
      const auto x = matrix().requires_grad_();
      Tensor y = x * 2;
      if (kind == 0) {
        for (const auto& layer : layers) {
          support::Mlp plain = layer;
          y = moved ? refrain::offload(layer, AnyTier(waits))(y) : plain(y);
        }
      } else if (kind == 1) {
        y = moved ? refrain::offload(chain, refrain::policy::every(1), AnyTier(waits))->forward(y)
                  : chain->forward(y);
      } else {
        y = moved ? refrain::offload(layers, refrain::policy::all(), AnyTier(waits))(y)
                  : chain->forward(y);
      }
      y.sum().backward();
      std::vector<Tensor> all = {y.detach(), x.grad()};
      for (const auto& p : chain->parameters()) all.push_back(p.grad());
      return all;
    };
    const auto plain = run(false);
    const auto moved = run(true);
    ASSERT_EQ(plain.size(), moved.size());
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(torch::equal(plain[i], moved[i])) << kind << " " << i;
    EXPECT_GT(waits.counts().moved, 0) << kind;
    EXPECT_EQ(waits.counts().held, 0) << kind;
  }
}

TEST(Offload, ServesLayersBuiltLazilyAndBuffers) {
  support::Twin(CheckpointOptions().tier(AnyTier(arena())).saved(Saved::Moved))
      .of([](auto wrap, support::Step& step) {
        auto norm = wrap(step.watch(torch::nn::BatchNorm1d(64)));
        auto h = step.leaf(torch::randn({96, 64})) * 2;
        for (int i = 0; i < 3; ++i) h = norm(h).relu();
        step.backward(h);
      });
}

TEST(Offload, IsAPlainCallWithoutGradMode) {
  const auto waits = arena();
  auto layer = refrain::offload([](const Tensor& x) { return x.sin().exp(); }, AnyTier(waits));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(layer(matrix()).requires_grad());
  EXPECT_EQ(waits.counts().moved, 0);
}

TEST(Offload, WhatWasChangedInPlaceSinceIsAnErrorAsInPlainAutograd) {
  auto layer = refrain::offload([](const Tensor& x) { return x.exp(); }, AnyTier(arena()));
  const auto y = layer(matrix().requires_grad_() * 2);
  {
    const torch::NoGradGuard no_grad;
    Tensor(y).add_(1);
  }
  const auto message = message_of<refrain::DivergenceError>([&] { y.sum().backward(); });
  EXPECT_THAT(message, HasSubstr("was changed in place since the forward"));
  EXPECT_THAT(message, HasSubstr("float32[64, 64]"));
}

TEST(Offload, AChangeOfWhatCameBackIsFoundToo) {
  struct ChangesWhatItSaved : torch::autograd::Function<ChangesWhatItSaved> {
    static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
      context->save_for_backward({x});
      return x * 2;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      context->get_saved_variables()[0].mul_(0);
      return {gradients[0] * 2};
    }
  };
  const auto step = [](auto&& wrap) {
    const auto x = matrix().requires_grad_();
    auto layer = wrap([](const Tensor& t) {
      const Tensor h = t * 1;
      const Tensor a = h.sin();  // its backward comes after the other's
      return a.sum() + ChangesWhatItSaved::apply(h).sum();
    });
    auto y = layer(x);
    y.backward();
    return x.grad();
  };
  EXPECT_ANY_THROW(step([](auto f) { return f; })) << "plain autograd finds it";
  EXPECT_ANY_THROW(step([](auto f) { return refrain::offload(f, AnyTier(arena())); }));
}

TEST(Offload, TwoTiersForOneMemoryLeaveItWhereItIs) {
  const AnyTier lossy = tier::quantized(tier::host(), 4);
  const auto exact = arena();
  const auto w = matrix().requires_grad_();
  auto first = refrain::offload([](const Tensor& x) { return x.tanh(); }, lossy);
  auto second = refrain::offload([&w](const Tensor& x) { return x.mm(w); }, AnyTier(exact));
  const auto gradient = [&](auto&& a, auto&& b) {
    torch::manual_seed(8);
    Tensor h = a(matrix().requires_grad_() * 2);
    h = b(h);
    second(matrix());
    h.sum().backward();
    return std::exchange(w.mutable_grad(), {});
  };
  const auto moved = gradient(first, second);
  const refrain::PlainScope plain;
  EXPECT_TRUE(torch::equal(moved, gradient(first, second)));
}

TEST(Offload, WhatIsAlwaysInFlightDoesNotPileUp) {
  const auto waits = arena();
  auto layer =
      refrain::offload([](const Tensor& x) { return x.sin().exp().tanh(); }, AnyTier(waits));
  const auto x = matrix().requires_grad_();
  Tensor before = layer(x * 2).sum();
  for (int i = 0; i < 300; ++i) {
    Tensor now = layer(x * 2).sum();
    before.backward();
    before = now;
    EXPECT_LE(waits.counts().held, 8);
  }
}

TEST(Offload, WithoutATierSaysSo) {
  auto layer = refrain::checkpoint([](const Tensor& x) { return x.exp(); },
                                   CheckpointOptions().name("head").saved(Saved::Moved));
  const auto message = message_of<refrain::OptionError>([&] { layer(matrix().requires_grad_()); });
  EXPECT_THAT(message, HasSubstr("`head`"));
  EXPECT_THAT(message, HasSubstr("no tier"));
}

TEST(Offload, RegionsInsideMayReplayAndRegionsAroundMayToo) {
  for (const bool outer_moves : {true, false}) {
    const auto waits = arena();
    const CheckpointOptions moved = CheckpointOptions().tier(AnyTier(waits)).saved(Saved::Moved);
    support::Twin(outer_moves ? moved : CheckpointOptions())
        .of([&](auto wrap, support::Step& step) {
          const auto w = step.leaf(matrix().div(8));
          const auto inner = [&](const Tensor& x) { return x.mm(w).tanh().mm(w).sin(); };
          auto quiet = refrain::checkpoint(inner, outer_moves ? CheckpointOptions() : moved);
          auto outer = wrap([&](const Tensor& x) {
            // The plain side runs the inner region too.
            return torch::dropout(quiet(x.exp().tanh()), 0.3, true).sin().exp();
          });
          step.backward(outer(step.leaf(matrix()) * 2));
        });
    EXPECT_GT(waits.counts().moved, 0);
    EXPECT_EQ(waits.counts().held, 0);
  }
}

TEST(Offload, GradientsOfSomeInputsAloneLeaveNothingBehind) {
  const auto waits = arena();
  {
    const auto x = matrix().requires_grad_();
    const auto z = matrix().requires_grad_();
    auto layer = refrain::offload(
        [](const Tensor& a, const Tensor& b) { return a.sin().exp() * b.cos().exp(); },
        AnyTier(waits));
    const auto y = layer(x * 2, z * 2).sum();
    const auto gx = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true)[0];
    const auto gz = torch::autograd::grad({y}, {z})[0];
    EXPECT_TRUE(gx.defined() && gz.defined());
  }
  EXPECT_EQ(waits.counts().held, 0);
}

TEST(Offload, AGraphThatIsDroppedGivesItsRoomBack) {
  const auto waits = arena();
  auto layer =
      refrain::offload([](const Tensor& x) { return x.sin().exp().tanh(); }, AnyTier(waits));
  const auto x = matrix().requires_grad_();
  EXPECT_LE(support::growth_over(20, [&](int) { layer(x * 2); }), 0);
  EXPECT_EQ(waits.counts().held, 0);
}

/// Notes what is asked of it.
class Noting {
 public:
  using Log = std::vector<std::string>;
  explicit Noting(std::shared_ptr<Log> log) : log_(std::move(log)) {}
  std::unique_ptr<refrain::TierItem> take(const Tensor& contents) const {
    auto name = std::to_string(static_cast<int>(contents[0].item<float>()));
    log_->push_back("take " + name);
    return std::make_unique<Item>(contents, std::move(name), log_);
  }
  static std::string describe() { return "noting"; }

 private:
  class Item final : public refrain::TierItem {
   public:
    Item(Tensor contents, std::string name, std::shared_ptr<Log> log)
        : contents_(std::move(contents)), name_(std::move(name)), log_(std::move(log)) {}
    void fetch() override { log_->push_back("fetch " + name_); }
    Tensor get() override {
      log_->push_back("get " + name_);
      return contents_;
    }

   private:
    Tensor contents_;
    std::string name_;
    std::shared_ptr<Log> log_;
  };
  std::shared_ptr<Log> log_;
};

TEST(Offload, FetchesTheRegionBeforeWhileOneRunsBackward) {
  const auto log = std::make_shared<Noting::Log>();
  const AnyTier noting = Noting(log);
  // The first element tells which tensor it is.
  auto add = refrain::checkpoint([](const Tensor& x) { return (x * x).sqrt() + 1; },
                                 CheckpointOptions().tier(noting));
  const auto one = torch::ones({}).requires_grad_();
  auto h = torch::ones({5000}) * one;
  for (int i = 0; i < 4; ++i) h = add(h);
  EXPECT_EQ(*log, (Noting::Log{"take 1", "take 2", "take 3"}));
  log->clear();
  h.sum().backward();
  EXPECT_EQ(*log, (Noting::Log{"fetch 3", "get 3", "fetch 2", "get 2", "fetch 1", "get 1"}));
}

TEST(Offload, VerifyProvesIt) {
  support::Mlp plain(64, 0.2);
  auto moved = refrain::offload(support::Mlp(64, 0.2), AnyTier(arena()));
  const auto report = refrain::verify(moved, torch::randn({96, 64}));
  EXPECT_TRUE(report.ok()) << fmt::format("{}", report);
}

TEST(TierOfARegion, KeptResultsWaitThereToo) {
  const auto waits = arena();
  for (const auto route : {refrain::Route::Hooks, refrain::Route::Function}) {
    const auto options =
        CheckpointOptions(refrain::policy::keep_matmuls()).route(route).tier(AnyTier(waits));
    const auto before = waits.counts();
    support::Twin(options).of([](auto wrap, support::Step& step) {
      const auto w = step.leaf(matrix().div(8));
      auto layer = wrap([w](const Tensor& x) { return x.mm(w).tanh().exp().sin(); });
      step.backward(layer(step.leaf(matrix()) * 2));
    });
    EXPECT_EQ((waits.counts().bytes_moved - before.bytes_moved), Bytes(kRow))
        << "the product; the input is the caller's";
    EXPECT_EQ(waits.counts().held, 0);
  }
}

TEST(TierOfARegion, ValuesKeptByNameWaitThereToo) {
  const auto waits = arena();
  support::RunCounter ran;
  support::Twin(CheckpointOptions().tier(AnyTier(waits)))
      .of([&ran](auto wrap, support::Step& step) {
        auto layer = wrap([&ran](const Tensor& x) {
          const auto order = refrain::keep("order", [&] {
            ++ran;
            return x.detach().argsort(/*dim=*/std::int64_t{1});
          });
          return x.gather(1, order).tanh().exp();
        });
        step.backward(layer(step.leaf(matrix()) * 2));
      });
  EXPECT_EQ(ran.runs(), 2) << "once plain, once not";
  EXPECT_EQ(waits.counts().bytes_moved, Bytes(2 * kRow)) << "64-bit numbers";
}

TEST(TierOfARegion, ALedgerTellsWhatMovedAndForHowLongTheStepWaited) {
  const auto waits = arena();
  const auto w = matrix().div(8).requires_grad_();
  for (const auto saved : {Saved::Replayed, Saved::Moved}) {
    auto block =
        refrain::checkpoint([w](const Tensor& x) { return x.mm(w).tanh().mm(w); },
                            CheckpointOptions().name("block").tier(AnyTier(waits)).saved(saved));
    const auto before = waits.counts();
    const auto ledger = refrain::record([&] {
      auto h = matrix();
      for (int i = 0; i < 4; ++i) h = block(h);
      h.sum().backward();
    });
    const auto count = waits.counts().moved - before.moved;
    EXPECT_EQ(count, saved == Saved::Moved ? 7 : 3);
    ASSERT_EQ(static_cast<std::int64_t>(ledger.moved.size()), count);
    for (const auto& memory : ledger.moved) {
      EXPECT_EQ(memory.region, "block");
      EXPECT_EQ(memory.bytes, Bytes(kRow));
      EXPECT_GT(memory.out.seconds(), 0);
      EXPECT_LT(memory.out.end, ledger.backward_passes[0].begin);
      ASSERT_EQ(memory.back.size(), 1U);
      EXPECT_GE(memory.back[0].begin, ledger.backward_passes[0].begin);
    }
    const auto totals = move_totals(ledger);
    ASSERT_EQ(totals.size(), 1U);
    EXPECT_EQ(totals[0].bytes, Bytes(kRow * count));
    EXPECT_THAT(to_string(ledger), HasSubstr(fmt::format("moved {} to counted(arena(32.00 MiB)), "
                                                         "{} storages: forward waited",
                                                         Bytes(kRow * count), count)));
    EXPECT_EQ(refrain::ledger_from_text(to_file_text(ledger)), ledger);
  }
}

TEST(TierOfARegion, IsToldByItsOptions) {
  const CheckpointOptions options = CheckpointOptions().tier(tier::arena(Bytes(1 << 20)));
  EXPECT_THAT(to_string(options), HasSubstr("keeps in arena(1.00 MiB)"));
  EXPECT_THAT(to_string(CheckpointOptions(options).saved(Saved::Moved)),
              HasSubstr("moved to arena(1.00 MiB)"));
}

}  // namespace
