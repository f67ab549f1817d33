// SPDX-License-Identifier: BSD-3-Clause
// What a recorded step tells: bytes by hand, whoever holds them, and that nothing else changes.
#include "support/live_bytes.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/seeded.hpp"
#include <refrain/keep.hpp>
#include <refrain/memory.hpp>
#include <refrain/record.hpp>
#include <refrain/replay.hpp>

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace nn = torch::nn;
using refrain::Bytes;
using refrain::CheckpointOptions;
using refrain::KeptMemory;
using refrain::Ledger;
using refrain::Phase;
using refrain::RegionCall;
using testing::HasSubstr;
using torch::Tensor;
using Why = KeptMemory::Why;

constexpr std::int64_t kSide = 64;
constexpr Bytes kOne(kSide* kSide * 4);  // of a square float32 tensor
constexpr Bytes kTwo(2 * kSide * kSide * 4);

/// Nobody holds the region's result while its gradients are computed.
template <class Region>
void train(Region& region, const Tensor& x) {
  const Tensor loss = region(x).sum();
  loss.backward();
}

/// x·w, then sine, then exponential: autograd saves x and w, the product, and the result.
struct Recorded : support::OnBothRoutes {
  Tensor w = torch::randn({kSide, kSide}).requires_grad_();
  Tensor x = torch::randn({kSide, kSide});

  [[nodiscard]] auto named(const std::string& name) const {
    return refrain::checkpoint([w = w](const Tensor& t) { return t.mm(w).sin().exp(); },
                               options().name(name));
  }
  static const KeptMemory* kept(const RegionCall& call, Why why) {
    const auto found = std::find_if(call.kept.begin(), call.kept.end(),
                                    [why](const KeptMemory& memory) { return memory.why == why; });
    return found == call.kept.end() ? nullptr : &*found;
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, Recorded, support::kBothRoutes, support::route_name);

TEST_P(Recorded, TellsWhatARegionForgetsAndKeeps) {
  auto a = named("a");
  const Ledger ledger = refrain::record([&] { train(a, x); });
  ASSERT_EQ(ledger.calls.size(), 1U);
  const RegionCall& call = ledger.calls[0];
  EXPECT_EQ(call.region, "a");
  EXPECT_EQ(call.inside, -1);
  EXPECT_EQ(call.saved, kOne + kTwo) << "x, the product, the result; not the parameter";
  EXPECT_EQ(call.forgotten, kTwo) << "nobody holds the result of a sum's input";
  EXPECT_EQ(call.keeps(), kOne);
  EXPECT_EQ(call.kept_for(Why::Input), kOne);
  EXPECT_FALSE(call.draws);
  ASSERT_EQ(call.replays.size(), 1U);
  EXPECT_EQ(call.replays[0].rebuilt, kTwo);
  EXPECT_GT(call.replay_seconds(), 0);
  EXPECT_GT(call.first_run.seconds(), 0);
  ASSERT_EQ(ledger.backward_passes.size(), 1U);
  EXPECT_LE(call.first_run.end, ledger.backward_passes[0].begin);
  EXPECT_GE(call.replays[0].time.begin, ledger.backward_passes[0].begin);
  EXPECT_LE(call.replays[0].time.end, ledger.backward_passes[0].end);
}

TEST_P(Recorded, NamesTheOperatorsThatSave) {
  auto a = named("a");
  const Ledger ledger = refrain::record([&] { train(a, x); });
  ASSERT_EQ(ledger.calls[0].savers.size(), 3U);
  for (const auto& saver : ledger.calls[0].savers) {
    EXPECT_THAT(saver.op, testing::AnyOf("aten::mm", "aten::sin", "aten::exp"));
    EXPECT_EQ(saver.bytes, kOne);
  }
}

TEST_P(Recorded, SaysWhoHoldsAnOutput) {
  auto a = named("a");
  auto b = named("b");
  Tensor mine;
  const Ledger ledger = refrain::record([&] {
    const auto y = a(x);
    mine = b(y);
    const auto loss = b(y).cos().sum();
    loss.backward();
  });
  ASSERT_EQ(ledger.calls.size(), 3U);
  const KeptMemory* const passed_on = kept(ledger.calls[0], Why::Output);
  ASSERT_NE(passed_on, nullptr);
  EXPECT_EQ(passed_on->holder, "`b`, its argument 0");
  EXPECT_TRUE(passed_on->shared) << "it is counted there";
  constexpr const char* kOthers = "autograd outside all regions, or other code";
  EXPECT_EQ(kept(ledger.calls[1], Why::Output)->holder, kOthers);
  EXPECT_EQ(kept(ledger.calls[2], Why::Output)->holder, kOthers) << "the cosine saves it";
  EXPECT_EQ(ledger.calls[1].number, 0);
  EXPECT_EQ(ledger.calls[2].number, 1);
  EXPECT_EQ(ledger.calls[1].keeps(), kOne);
  EXPECT_EQ(ledger.calls[2].keeps(), Bytes(0)) << "the same input, counted once";
}

TEST_P(Recorded, SaysWhatSomebodyHoldsAnyway) {
  std::vector<Tensor> held;
  auto region = refrain::checkpoint(
      [&](const Tensor& t) {
        const auto product = t.mm(w);
        if (!refrain::replaying()) held.push_back(product);
        return product.sin().exp();
      },
      options().name("holds"));
  const Ledger ledger = refrain::record([&] { train(region, x); });
  EXPECT_EQ(ledger.calls[0].forgotten, kOne);
  EXPECT_EQ(ledger.calls[0].kept_for(Why::Held), kOne);
}

TEST_P(Recorded, TellsKeptResultsApart) {
  auto region = refrain::checkpoint(
      [&](const Tensor& t) {
        const auto product = t.mm(w);
        return refrain::keep("sine", [&] { return product.sin().detach(); }) * product.exp();
      },
      options().name("keeps").keep(refrain::policy::keep_ops({"aten::mm"}) +
                                   refrain::policy::keep_named({"sine"})));
  const Ledger ledger = refrain::record([&] { train(region, x); });
  const RegionCall& call = ledger.calls[0];
  EXPECT_EQ(call.kept_for(Why::Operator), kOne);
  EXPECT_EQ(call.kept_for(Why::Name), kOne);
  EXPECT_EQ(kept(call, Why::Operator)->what, "aten::mm, float32[64, 64]");
  EXPECT_EQ(kept(call, Why::Name)->what, "sine, float32[64, 64]");
  EXPECT_EQ(call.forgotten, kOne) << "the exponential";
  EXPECT_EQ(call.kept_for(Why::Held), Bytes(0)) << "what is kept is not held anyway";
}

TEST_P(Recorded, CountsBuffersAndRandomState) {
  auto norm = nn::BatchNorm1d(kSide);
  auto region = refrain::checkpoint(
      [norm](const Tensor& t) mutable { return torch::dropout(norm(t), 0.5, true).sin(); },
      options().name("random"));
  const Ledger ledger = refrain::record([&] { train(region, x * w); });
  const RegionCall& call = ledger.calls[0];
  EXPECT_TRUE(call.draws);
  EXPECT_GT(call.kept_for(Why::Random), Bytes(0));
  EXPECT_EQ(call.kept_for(Why::Buffer), Bytes(2 * kSide * 4 + 8)) << "mean, variance, count";
  auto ignores =
      refrain::checkpoint([](const Tensor& t) { return torch::dropout(t, 0.5, true).sin(); },
                          options().rng(refrain::Rng::Ignore).check(refrain::Check::None));
  const Ledger other = refrain::record([&] { train(ignores, x * w); });
  EXPECT_TRUE(other.calls[0].draws);
  EXPECT_EQ(other.calls[0].kept_for(Why::Random), Bytes(0));
}

TEST_P(Recorded, SaysWhichRegionIsInsideWhich) {
  auto inner = named("inner");
  auto outer = refrain::checkpoint([&](const Tensor& t) { return inner(t.mm(w).sin()).cos(); },
                                   options().name("outer"));
  const Ledger ledger = refrain::record([&] { train(outer, x); });
  ASSERT_EQ(ledger.calls.size(), 2U) << "no call that a replay makes counts again";
  EXPECT_EQ(ledger.calls[0].region, "outer");
  EXPECT_EQ(ledger.calls[1].region, "inner");
  EXPECT_EQ(ledger.calls[1].inside, 0);
  EXPECT_EQ(ledger.calls[0].replays.size(), 1U);
  EXPECT_EQ(ledger.calls[1].replays.size(), 1U);
  EXPECT_EQ(ledger.calls[1].forgotten, kTwo);
  EXPECT_THAT(to_string(ledger), HasSubstr("\n  inner"));
}

TEST_P(Recorded, GivesTheGradientsOfAnyStep) {
  auto a = named("a");
  const auto gradient = [&](bool recorded) {
    w.mutable_grad() = Tensor();
    const auto step = [&] { a(a(x) * w).sin().sum().backward(); };
    if (recorded) {
      (void)refrain::record(step);
    } else {
      step();
    }
    return w.grad().clone();
  };
  EXPECT_TRUE(torch::equal(gradient(false), gradient(true)));
}

TEST_P(Recorded, FindsThePeakThatWasThere) {
  auto a = named("a");
  for (int i = 0; i < 2; ++i) {
    w.mutable_grad() = Tensor();
    refrain::reset_peak();
    const Ledger ledger = refrain::record([&] { a(a(x)).sum().backward(); });
    EXPECT_TRUE(ledger.whole);
    EXPECT_EQ(ledger.device, "cpu");
    ASSERT_TRUE(ledger.peak());
    EXPECT_EQ(ledger.peak()->live, refrain::memory().peak);
    EXPECT_EQ(ledger.timeline.back().live, refrain::memory().live);
    EXPECT_TRUE(std::is_sorted(
        ledger.timeline.begin(), ledger.timeline.end(),
        [](const auto& one, const auto& other) { return one.seconds < other.seconds; }));
  }
}

TEST_P(Recorded, SaysWhoseThePeakIs) {
  auto a = named("a");
  const auto owner = [&](const auto& step) {
    const auto peak = refrain::record(step).peak();
    return peak ? peak->phase : Phase::Forward;
  };
  const std::int64_t large = 40 * kSide;
  EXPECT_EQ(owner([&] {
              const auto y = a(x).sum();
              (void)torch::ones({large, large});
              y.backward();
            }),
            Phase::Loss);
  EXPECT_EQ(owner([&] {
              a(x).sum().backward();
              (void)torch::ones({large, large});
            }),
            Phase::Rest);
  EXPECT_EQ(owner([&] {
              (void)torch::ones({large, large});
              a(x).sum().backward();
            }),
            Phase::Forward);
  auto wide =
      refrain::checkpoint([&](const Tensor& t) { return t.mm(w).repeat({40, 40}).sin().sum(); },
                          options().early_stop(refrain::EarlyStop::Off));
  const Phase phase = owner([&] { wide(x).backward(); });
  EXPECT_TRUE(phase == Phase::Replay || phase == Phase::Backward || phase == Phase::Region);
}

TEST_P(Recorded, LetsExceptionsOfTheStepPass) {
  auto a = named("a");
  EXPECT_THROW((void)refrain::record([&] {
                 (void)a(x);
                 throw std::runtime_error("mine");
               }),
               std::runtime_error);
  const auto y = a(x);
  const Ledger ledger = refrain::record([&] { train(a, x); });
  EXPECT_EQ(ledger.calls.size(), 1U);
  y.sum().backward();
}

TEST_P(Recorded, EndsWithTheStep) {
  auto a = named("a");
  Tensor y;
  const Ledger ledger = refrain::record([&] { y = a(x); });
  EXPECT_EQ(ledger.calls.size(), 1U);
  EXPECT_TRUE(ledger.calls[0].replays.empty());
  EXPECT_EQ(ledger.calls[0].forgotten, kOne) << "the product; the caller holds the result";
  y.sum().backward();
  const auto gradient = w.grad().clone();
  w.mutable_grad() = Tensor();
  a(x).sum().backward();
  EXPECT_TRUE(torch::equal(w.grad(), gradient));
}

TEST_P(Recorded, CountsEachThreadForItself) {
  auto a = named("a");
  std::vector<Ledger> ledgers(2);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ledgers.size(); ++i) {
    threads.emplace_back([&, i] {
      auto mine = a;
      const auto input = torch::randn({kSide, kSide}).requires_grad_();
      for (int round = 0; round < 20; ++round) {
        ledgers[i] = refrain::record([&] {
          for (std::size_t call = 0; call <= i; ++call) train(mine, input);
        });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ledgers[0].calls.size(), 1U);
  EXPECT_EQ(ledgers[1].calls.size(), 2U);
  EXPECT_EQ(ledgers[1].backward_passes.size(), 2U);
  for (const Ledger& ledger : ledgers) {
    for (const RegionCall& call : ledger.calls) EXPECT_EQ(call.forgotten, kTwo);
  }
}

TEST_P(Recorded, CountsWhatTheStepTakesWhereNobodyCountsAll) {
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/10);
  auto a = named("a");
  const Ledger ledger = refrain::record([&] { train(a, x); });
  refrain::count_cpu_memory(refrain::Poison::On);
  EXPECT_FALSE(ledger.whole);
  ASSERT_TRUE(ledger.peak());
  EXPECT_GE(ledger.peak()->live, kTwo);
  EXPECT_LT(ledger.peak()->live, Bytes(20 * kSide * kSide * 4));
  EXPECT_THAT(to_string(ledger), HasSubstr("beyond what lived before"));
}

struct RecordedOnHooks : support::Seeded {
  Tensor w = torch::randn({kSide, kSide}).requires_grad_();
  Tensor x = torch::randn({kSide, kSide});
};

TEST_F(RecordedOnHooks, SaysWhetherAReplayStoppedEarly) {
  const auto stopped = [&](refrain::EarlyStop early) {
    auto region = refrain::checkpoint([&](const Tensor& t) { return t.mm(w).sin().mm(w); }, early);
    return refrain::record([&] { train(region, x); }).calls[0].replays[0].stopped_early;
  };
  EXPECT_TRUE(stopped(refrain::EarlyStop::On));
  EXPECT_FALSE(stopped(refrain::EarlyStop::Off));
}

TEST_F(RecordedOnHooks, CountsTheReplaysOfARetainedGraph) {
  auto region = refrain::checkpoint([&](const Tensor& t) { return t.mm(w).sin().exp(); });
  const Ledger ledger = refrain::record([&] {
    const auto y = region(x).sum();
    y.backward({}, /*retain_graph=*/true);
    y.backward();
  });
  EXPECT_EQ(ledger.calls[0].replays.size(), 2U);
  EXPECT_EQ(ledger.backward_passes.size(), 2U);
}

TEST_F(RecordedOnHooks, InnerInputsAreForgottenByTheRegionAround) {
  auto inner = refrain::checkpoint([&](const Tensor& t) { return t.mm(w).sin(); },
                                   CheckpointOptions().name("inner"));
  auto outer = refrain::checkpoint([&](const Tensor& t) { return inner(t.mm(w)).mm(w).sin(); },
                                   CheckpointOptions().name("outer"));
  const Ledger ledger = refrain::record([&] { train(outer, x); });
  EXPECT_EQ(ledger.calls[1].keeps(), Bytes(0));
  EXPECT_EQ(ledger.calls[0].forgotten, kOne + kTwo)
      << "what inner begins with, gives, and one more";
}

TEST_F(RecordedOnHooks, AChangeInPlaceOutsideIsAnErrorAsEver) {
  const auto step = [&] {
    const auto z = x.mul(w).sin().exp();
    z.add_(1);
    z.sum().backward();
  };
  EXPECT_THROW(step(), c10::Error);
  EXPECT_THROW((void)refrain::record(step), c10::Error);
}

/// Adds to a parameter's gradient itself, as fused kernels do.
struct Accumulates : torch::autograd::Function<Accumulates> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& t,
                        const Tensor& weight) {
    context->save_for_backward({t, weight});
    return t.mm(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    saved[1].mutable_grad() = saved[0].t().mm(gradients[0]);
    return {gradients[0].mm(saved[1].t()), Tensor()};
  }
};

TEST_F(RecordedOnHooks, WhatRunsOutsideRegionsSeesNothingOfIt) {
  const auto input = x.clone().requires_grad_();
  (void)refrain::record([&] { Accumulates::apply(input, w).sum().backward(); });
  EXPECT_TRUE(w.grad().defined()) << "the parameter itself came back to it";
  const auto zeros = torch::zeros_like(w);
  input.mutable_grad() = Tensor();
  (void)refrain::record([&] {
    const auto y = input.mm(w).sum();
    w.set_data(zeros);
    y.backward();
  });
  EXPECT_EQ(input.grad().abs().sum().item<float>(), 0) << "as the plain step has it";
}

TEST_F(RecordedOnHooks, RegionsThatAreReplayedAfterTheStepTellNobody) {
  for (const auto route : {refrain::Route::Hooks, refrain::Route::Function}) {
    auto inner = refrain::checkpoint([&](const Tensor& t) { return t.mm(w).sin(); }, route);
    auto outer = refrain::checkpoint([&](const Tensor& t) { return inner(inner(t)); }, route);
    Tensor y;
    (void)refrain::record([&] { y = outer(x).sum(); });
    y.backward();
    EXPECT_TRUE(w.grad().defined());
  }
}

TEST_F(RecordedOnHooks, RegionsTellFromAnotherThreadMeanwhile) {
  auto region = refrain::checkpoint([&](const Tensor& t) { return t.mm(w).sin().exp(); });
  for (int round = 0; round < 20; ++round) {
    const Ledger ledger = refrain::record([&] {
      std::vector<Tensor> sums;
      for (int i = 0; i < 4; ++i) sums.push_back(region(torch::randn({8, kSide})).sum());
      std::thread other([&] {
        for (const auto& sum : sums) sum.backward();
      });
      for (int i = 0; i < 20; ++i) (void)(w.detach().clone().requires_grad_() * 2).sin();
      other.join();
    });
    ASSERT_EQ(ledger.calls.size(), 4U);
    for (const RegionCall& call : ledger.calls) EXPECT_EQ(call.replays.size(), 1U);
  }
}

TEST_F(RecordedOnHooks, ABackwardOfSomethingElseSettlesNothing) {
  auto region = refrain::checkpoint([&](const Tensor& t) { return t.mm(w).sin().exp(); });
  Tensor loss;
  const auto v = torch::ones({3}).requires_grad_();
  const Ledger ledger = refrain::record([&] {
    {
      const auto y = region(x);
      loss = y.sum();
      (v * v).sum().backward();  // y still lives here
    }
    loss.backward();
  });
  EXPECT_EQ(ledger.calls[0].forgotten, kTwo);
}

TEST_F(RecordedOnHooks, ARegionWhoseBodyTakesAGradientIsSettled) {
  auto force = refrain::checkpoint(
      [&](const Tensor& t) {
        const auto position = t.detach().requires_grad_();
        const auto energy = position.mm(w).sin().exp().sum();
        return torch::autograd::grad({energy}, {position}, {}, true, true)[0] * t;
      },
      CheckpointOptions().name("force"));
  Tensor y;
  const Ledger ledger = refrain::record([&] { y = force(x); });
  EXPECT_EQ(ledger.calls[0].keeps(), kOne) << "its input";
  EXPECT_GT(ledger.calls[0].forgotten, kOne);
}

TEST_F(RecordedOnHooks, AnArgumentThatIsChangedInPlaceCountsOnce) {
  auto region = refrain::checkpoint([&](Tensor t) { return t.mul_(2).mm(w).sin(); });
  const auto input = x.clone();
  const Ledger ledger = refrain::record([&] { train(region, input); });
  EXPECT_EQ(ledger.calls[0].kept_for(Why::Buffer), kOne);
  EXPECT_EQ(ledger.calls[0].kept_for(Why::Input), Bytes(0));
}

TEST_F(RecordedOnHooks, KeptResultsAreNotRebuilt) {
  for (const auto route : {refrain::Route::Hooks, refrain::Route::Function}) {
    auto region = refrain::checkpoint(
        [&](const Tensor& t) { return t.mm(w).sin().exp(); },
        CheckpointOptions().route(route).keep(refrain::policy::keep_ops({"aten::mm"})));
    const Ledger ledger = refrain::record([&] { train(region, x); });
    EXPECT_EQ(ledger.calls[0].replays[0].rebuilt, kOne) << "the exponential";
  }
}

TEST_F(RecordedOnHooks, ARegionThatThrewSaysSo) {
  auto region = refrain::checkpoint([&](const Tensor& t) -> Tensor {
    if (t.size(0) > 1) throw std::runtime_error("too large");
    return t.sin();
  });
  const Ledger ledger = refrain::record([&] {
    EXPECT_THROW((void)region(x), std::runtime_error);
    train(region, x.slice(0, 0, 1).clone().requires_grad_());
  });
  ASSERT_EQ(ledger.calls.size(), 2U);
  EXPECT_TRUE(ledger.calls[0].threw);
  EXPECT_FALSE(ledger.calls[1].threw);
}

TEST_F(RecordedOnHooks, AProfilerMayBeAskedForInTheStep) {
  bool enabled = true;
  (void)refrain::record([&] {
    enabled = torch::profiler::impl::profilerEnabled();
    (void)torch::profiler::impl::profilerType();
  });
  EXPECT_FALSE(enabled);
}

TEST_F(RecordedOnHooks, ASecondBackwardIsAnErrorAsEver) {
  EXPECT_THROW((void)refrain::record([&] {
                 const auto y = x.mul(w).sin().sum();
                 y.backward();
                 y.backward();
               }),
               std::exception);
}

TEST_F(RecordedOnHooks, DoubleBackwardIsRecorded) {
  auto region = refrain::checkpoint([&](const Tensor& t) { return t.mm(w).sin().exp(); });
  const auto second = [&] {
    const auto input = x.clone().requires_grad_();
    const auto y = region(input).sum();
    const auto grad = torch::autograd::grad({y}, {input}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({grad.pow(2).sum()}, {w})[0];
  };
  const auto plain = second();
  Tensor recorded;
  const Ledger ledger = refrain::record([&] { recorded = second(); });
  EXPECT_TRUE(torch::equal(plain, recorded));
  EXPECT_EQ(ledger.calls.size(), 1U);
  EXPECT_GE(ledger.calls[0].replays.size(), 1U);
}

TEST_F(RecordedOnHooks, ARecordInsideARecordHasItsOwn) {
  auto region = refrain::checkpoint([&](const Tensor& t) { return t.mm(w).sin().exp(); });
  Ledger inner;
  const Ledger outer = refrain::record([&] {
    region(x).sum().backward();
    inner = refrain::record([&] { train(region, x); });
    region(x).sum().backward();
  });
  EXPECT_EQ(inner.calls.size(), 1U);
  EXPECT_EQ(outer.calls.size(), 2U);
}

TEST_F(RecordedOnHooks, DiffTellsWhatAPolicyChanged) {
  std::vector<support::Mlp> blocks;
  for (int i = 0; i < 4; ++i) blocks.emplace_back(kSide);
  auto pairs = refrain::checkpoint(blocks, refrain::policy::every(2));
  auto none = refrain::checkpoint(blocks, refrain::policy::none());
  const auto input = x.clone().requires_grad_();
  const auto diff = refrain::diff(refrain::record([&] { none(input).sum().backward(); }),
                                  refrain::record([&] { pairs(input).sum().backward(); }));
  ASSERT_EQ(diff.regions.size(), 1U);
  EXPECT_EQ(diff.regions[0].region, "layers[0,2)");
  EXPECT_EQ(diff.regions[0].before.calls, 0);
  EXPECT_EQ(diff.regions[0].after.calls, 1);
  ASSERT_TRUE(diff.waiting);
  EXPECT_LT(*diff.waiting, Bytes(0));
}

}  // namespace
