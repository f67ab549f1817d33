// SPDX-License-Identifier: BSD-3-Clause
// Tensors that share memory, or lie in it with gaps: arguments, captured views, buffers.
#include "support/live_bytes.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

namespace {

using torch::Tensor;

class SharedStorage : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, SharedStorage, support::kBothRoutes, support::route_name);

TEST_P(SharedStorage, OneRowIsWrittenAndAnotherRead) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto table = torch::rand({2, 4});
    const auto written = table[0];
    const auto read = table[1];
    auto region = wrap([=](Tensor t) {
      written.add_(1);
      return (t * read.clone()).sin() * written.clone();
    });
    const auto x = step.leaf(torch::randn({4}));
    const auto first = region(x);
    const auto second = region(x);
    step.backward(first, second);
    step.note("table", table);
  });
}

TEST_P(SharedStorage, ARowIsWrittenAndThenTheTableRead) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto table = torch::rand({2, 4});
    const auto row = table[0];
    auto region = wrap([=](Tensor t) {
      row.mul_(2);
      return (t * table.clone()).sin();
    });
    const auto x = step.leaf(torch::randn({2, 4}));
    const auto first = region(x);
    table[1].add_(1);
    const auto second = region(x);
    row.zero_();
    step.backward(first, second);
    step.note("table", table);
  });
}

TEST_P(SharedStorage, TheTableIsReadByARegionAroundTheOneThatWritesARow) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto table = torch::rand({2, 4});
    const auto row = table[0];
    auto inner = wrap([=](Tensor t) {
      row.mul_(2);
      return t.sin() * row.clone();
    });
    auto outer = wrap([=](Tensor t) mutable { return (inner(t.exp()) * table.clone()).sin(); });
    const auto x = step.leaf(torch::randn({2, 4}));
    const auto first = outer(x);
    const auto second = outer(x);
    step.backward(first, second);
    step.note("table", table);
  });
}

TEST_P(SharedStorage, AnArgumentWithGapsIsChangedAndThenReadByItsStrides) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap([](Tensor t, Tensor columns) {
      columns.add_(1);
      return (t * columns.as_strided({4, 2}, {4, 2}).clone()).sin();
    });
    const auto table = torch::rand({4, 4});
    const auto columns = table.narrow(1, 0, 3).slice(1, 0, 3, 2);
    step.backward(region(step.leaf(torch::randn({4, 2})), columns));
    step.note("table", table);
  });
}

TEST_P(SharedStorage, ACapturedViewWhoseBaseWasChanged) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({3, 4}));
    const auto base = x.sin();
    const auto row = base[1];
    base.mul_(2);  // the view's history is made anew when it is next used: in the region
    auto region = wrap([=](Tensor t) { return (t * row).exp().cos(); });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
}

TEST_P(SharedStorage, AnArgumentThatIsAViewWhoseBaseWasChanged) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({3, 4}));
    const auto base = x.sin();
    const auto row = base[1];
    base.mul_(2);
    auto region = wrap([](Tensor t) { return t.exp().cos(); });
    step.backward(region(row));
  });
}

TEST(SharedStorageHooks, ASecondDerivativeReadsTheBufferAsItWas) {
  support::Twin().of([](auto wrap, support::Step& step) {
    const auto running = torch::ones({4});
    auto region = wrap([=](Tensor t) {
      {
        const torch::NoGradGuard no_grad;
        running.mul_(0.9).add_(t.mean(0), 0.1);
      }
      return (t * running.clone()).sin() + (t * running).exp();
    });
    const auto x = step.leaf(torch::randn({3, 4}));
    const auto y = region(x);
    const auto g = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    step.note("gradient", g);
    step.backward(g.pow(2));
    step.note("running", running);
  });
}

TEST_P(SharedStorage, ABufferThatMovesBetweenTheFirstDerivativeAndTheSecond) {
  // Plain autograd says that a tensor it needs was changed. Silence would be wrong; the values that
  // the buffer had at the call are right.
  const auto running = torch::ones({4});
  auto region = quiet([=](Tensor t) {
    {
      const torch::NoGradGuard no_grad;
      running.mul_(2);
    }
    return (t * running).exp();
  });
  for (int moves = 1; moves <= 3; ++moves) {
    running.fill_(1);
    const auto x = torch::randn({4}).requires_grad_();
    const auto g = torch::autograd::grad({region(x).sum()}, {x}, {}, true, true)[0];
    for (int i = 0; i < moves; ++i) running.add_(1);
    try {
      g.sum().backward();
    } catch (const std::exception&) {
      continue;
    }
    EXPECT_TRUE(torch::allclose(x.grad(), (x * 2).exp() * 4)) << moves << " moves";
  }
}

TEST_P(SharedStorage, StatisticsOfASynchronisedBatchNormMoveOnce) {
  // What SyncBatchNorm calls; its schema does not mark what it writes.
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto mean = torch::zeros({4});
    const auto variance = torch::ones({4});
    auto region = wrap([=](Tensor t) {
      const auto [now, spread] = torch::batch_norm_update_stats(t.detach(), mean, variance, 0.1);
      return ((t - now.view({1, 4})) * spread.view({1, 4}) * mean.clone()).sin();
    });
    const auto x = step.leaf(torch::randn({8, 4}));
    const auto first = region(x);
    const auto second = region(x);
    step.backward(first, second);
    step.note("mean", mean);
    step.note("variance", variance);
  });
}

TEST_P(SharedStorage, ASecondDerivativeThroughABatchNorm) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto norm = step.watch(torch::nn::BatchNorm1d(4));
    auto region = wrap([=](Tensor t) mutable { return norm(t).sin().exp(); });
    const auto x = step.leaf(torch::randn({3, 4}));
    const auto g = torch::autograd::grad({region(x).sum()}, {x}, {}, true, true)[0];
    step.backward(g.pow(2));
  });
}

TEST_P(SharedStorage, ABufferThatATensorMadeInsidePointsTo) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto buffer = torch::zeros({4});
    auto region = wrap([=](Tensor t) {
      auto view = torch::empty({0});
      view.set_(buffer.storage(), 0, {4}, {1});
      view.add_(1);
      return (t * view.clone()).sin();
    });
    const auto x = step.leaf(torch::randn({4}));
    const auto first = region(x);
    const auto second = region(x);
    step.backward(first, second);
    step.note("buffer", buffer);
  });
}

TEST_P(SharedStorage, OneSlotOfALongTableIsKeptAndNotTheTable) {
  const auto table = torch::zeros({2, 2000, 16});
  auto region = quiet([](Tensor t, Tensor slot) {
    slot.copy_(t.detach());
    return (t * slot.clone()).sin();
  });
  auto y = torch::randn({2, 16}).requires_grad_();
  const auto before = support::live_bytes();
  for (int i = 0; i < 10; ++i) y = region(y, table.select(1, i));
  EXPECT_LT(support::live_bytes() - before, 20'000);
  y.sum().backward();
}

#ifdef REFRAIN_DETAIL_NAMED_TENSORS
TEST_P(SharedStorage, NamedTensorsKeepTheirNames) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto rows = at::Dimname::fromSymbol(at::Symbol::dimname("rows"));
    auto region = wrap([=](Tensor t) {
      EXPECT_TRUE(t.has_names());
      return (t.exp() * t).sum({rows}).rename(std::nullopt);
    });
    const auto x = step.leaf(torch::randn({3, 4}));
    const auto columns = at::Dimname::fromSymbol(at::Symbol::dimname("columns"));
    step.backward(region(x.rename(std::vector<at::Dimname>{rows, columns})));
  });
}
#endif

}  // namespace
