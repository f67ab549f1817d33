// SPDX-License-Identifier: BSD-3-Clause
// Regions nobody plans and somebody writes.
#include "support/live_bytes.hpp"
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/library.h>

namespace {

using support::Step;
using support::Twin;
using torch::Tensor;

class OddRegions : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, OddRegions, support::kBothRoutes, support::route_name);

TEST_P(OddRegions, NoArguments) {
  Twin(options()).of([](auto wrap, Step& step) {
    const auto w = step.leaf(torch::randn({3}));
    step.backward(wrap([w] { return (w * w).sin().exp(); })());
  });
}

TEST_P(OddRegions, NothingDone) {
  Twin(options()).of([](auto wrap, Step& step) {
    step.backward(wrap([](Tensor t) { return t; })(step.leaf(torch::randn({3}))));
  });
}

TEST_P(OddRegions, NothingSaved) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto region = wrap([](Tensor t) { return t + 1 + t.sum(); });
    step.backward(region(step.leaf(torch::randn({3}))));
  });
}

TEST_P(OddRegions, AnEmptyTensor) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto region = wrap([](Tensor t) { return t.sin().exp(); });
    step.backward(region(step.leaf(torch::randn({0, 3}))));
  });
}

TEST_P(OddRegions, AnIntegerResultAlone) {
  const auto y = quiet([](Tensor t) { return t.argmax(); })(torch::randn({3}).requires_grad_());
  EXPECT_FALSE(y.requires_grad());
}

TEST_P(OddRegions, ABodyThatCatchesEverything) {
  const auto how = options().early_stop(refrain::EarlyStop::Off);
  Twin(how).of([](auto wrap, Step& step) {
    auto region = wrap([](Tensor t) {
      try {
        return t.sin().exp();
      } catch (...) {
        return t;
      }
    });
    step.backward(region(step.leaf(torch::randn({3}))));
  });
}

TEST_P(OddRegions, ABodyThatChangesItself) {
  // A mutable lambda counts its calls; a replay starts from where its first run did.
  Twin(options()).of([](auto wrap, Step& step) {
    auto region = wrap([n = 0](Tensor t) mutable { return (t * double(++n)).sin(); });
    const auto x = step.leaf(torch::randn({3}));
    const auto first = region(x);
    const auto second = region(x);
    step.backward(first, second);
  });
}

TEST_P(OddRegions, AConstantMadeInside) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto region = wrap([](Tensor t) {
      float raw[] = {1, 2, 3};
      const auto blob = torch::from_blob(raw, {3}).clone();
      return (t * torch::tensor({0.5, 1.5, 2.5}) * blob).sin() * torch::arange(3);
    });
    step.backward(region(step.leaf(torch::randn({3}))));
  });
}

TEST_P(OddRegions, TheDataOfATensorAsAConstant) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto region = wrap([](Tensor t) { return (t.sin() * t.data() * t.detach()).exp(); });
    step.backward(region(step.leaf(torch::randn({3}))));
  });
}

TEST_P(OddRegions, InAnomalyMode) {
  const torch::autograd::DetectAnomalyGuard anomaly;
  Twin(options()).of([](auto wrap, Step& step) {
    auto layer = wrap(step.watch(support::Mlp(8, 0.3)));
    step.backward(layer(step.leaf(torch::randn({2, 8}))));
  });
}

TEST_P(OddRegions, ARetainedGradientOfAResult) {
  Twin(options()).of([](auto wrap, Step& step) {
    const auto y = wrap([](Tensor t) { return t.sin().exp(); })(step.leaf(torch::randn({3})));
    y.retain_grad();
    y.pow(2).sum().backward();
    step.note("retained", y.grad());
  });
}

TEST_P(OddRegions, ARegionCalledFromAHookDuringBackward) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto region = wrap([](Tensor t) { return t.sin().exp(); });
    const auto x = step.leaf(torch::randn({3}));
    const auto y = region(x);
    y.register_hook([&region](const Tensor& g) {
      const torch::AutoGradMode grad(true);
      const auto own = g.detach().requires_grad_();
      return torch::autograd::grad({region(own).sum()}, {own})[0];
    });
    step.backward(y);
  });
}

TEST_P(OddRegions, ASparseGradient) {
  const auto gradient = [&](bool wrapped) {
    torch::manual_seed(1);
    auto embedding = torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    const auto ids = torch::tensor({1, 5, 1});
    (wrapped ? quiet(embedding)(ids) : embedding(ids)).sin().sum().backward();
    return embedding->weight.grad();
  };
  EXPECT_TRUE(gradient(true).is_sparse());
  EXPECT_TRUE(torch::equal(gradient(true).to_dense(), gradient(false).to_dense()));
}

TEST_P(OddRegions, BothRoutesInOneModel) {
  const auto other =
      GetParam() == refrain::Route::Hooks ? refrain::Route::Function : refrain::Route::Hooks;
  Twin(options()).of([&](auto wrap, Step& step) {
    auto block = step.watch(support::Mlp(4, 0.2));
    auto inner = refrain::checkpoint([&](Tensor t) { return block->forward(t).sin(); },
                                     refrain::CheckpointOptions(other));
    auto outer = wrap([&](Tensor t) { return inner(t.cos()).tanh(); });
    step.backward(inner(outer(step.leaf(torch::randn({2, 4})))));
  });
}

TEST_P(OddRegions, AResultChangedInPlaceIsNeverSilentlyWrong) {
  const auto x = torch::randn({3}).requires_grad_();
  const auto y = quiet([](Tensor t) { return t.exp(); })(x);
  y.add_(1);  // the hooks route saved it, as plain autograd does; the function route makes it anew
  try {
    y.sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), x.exp()));
  } catch (const refrain::DivergenceError& error) {
    EXPECT_EQ(GetParam(), refrain::Route::Hooks) << error.what();
  }
}

TEST_P(OddRegions, TwentyThousandRegionsInARowLetGoWithoutAStackOverflow) {
  auto region = quiet([](Tensor t) { return t.sin(); });
  const auto x = torch::randn({1}).requires_grad_();
  {
    auto y = x;
    for (int i = 0; i < 20'000; ++i) y = region(y);
  }
  auto y = x;
  for (int i = 0; i < 20'000; ++i) y = region(y);
  y.backward();
  EXPECT_TRUE(x.grad().defined());
}

Tensor reads(const Tensor& t) { return t.clone(); }
Tensor& writes(Tensor& t) { return t.add_(1); }

TEST_P(OddRegions, OperatorsThatComeAndGo) {
  // Where one operator was in memory another may be next, and it may write where that one read.
  for (int i = 0; i < 20; ++i) {
    Twin(options()).of([i](auto wrap, Step& step) {
      torch::Library library(torch::Library::DEF, "refrain_tests", std::nullopt, __FILE__,
                             __LINE__);
      library.def(i % 2 == 0 ? "op(Tensor t) -> Tensor" : "op(Tensor(a!) t) -> Tensor(a!)");
      if (i % 2 == 0) {
        library.impl("op",
                     torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(reads)));
      } else {
        library.impl(
            "op", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(writes)));
      }
      const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("refrain_tests::op", "");
      const auto state = torch::zeros({3});
      auto region = wrap([&](Tensor t) {
        torch::jit::Stack stack{state};
        op.callBoxed(&stack);
        return (t * stack[0].toTensor().clone()).sin();
      });
      const auto x = step.leaf(torch::randn({3}));
      step.backward(region(x), region(x));
      step.note("state", state);
    });
  }
}

// Statistics are written beside the result: no gradient flows through them.
TEST_P(OddRegions, AnObserverOfQuantizationAwareTraining) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto low = torch::full({1}, -1.0F);
    auto high = torch::full({1}, 1.0F);
    auto scale = torch::ones({1});
    auto zero = torch::zeros({1}, torch::kInt);
    const auto on = torch::ones({1}, torch::kLong);
    auto region = wrap([=](const Tensor& t) mutable {
      return at::fused_moving_avg_obs_fake_quant(t.sin(), on, on, low, high, scale, zero, 0.1, 0,
                                                 255, 0)
          .exp();
    });
    step.backward(region(step.leaf(torch::randn({4, 4}))));
    for (const auto& statistic : {low, high, scale, zero}) step.note("statistic", statistic);
  });
}

TEST_P(OddRegions, ANormThatWritesItsStatisticsBesideItsResult) {
  Twin(options()).of([](auto wrap, Step& step) {
    auto mean = torch::zeros({3});
    auto variance = torch::ones({3});
    const auto weight = step.leaf(torch::randn({3}));
    const auto bias = step.leaf(torch::randn({3}));
    auto region = wrap([=](const Tensor& t) mutable {
      return std::get<0>(
                 at::_native_batch_norm_legit(t, weight, bias, mean, variance, true, 0.1, 1e-5))
          .sin();
    });
    step.backward(region(step.leaf(torch::randn({8, 3}))));
    step.note("mean", mean);
    step.note("variance", variance);
  });
}

TEST_P(OddRegions, AZeroTensorWhoseValuesAreChecked) {
  for (const auto check :
       {refrain::Check::Metadata, refrain::Check::Values, refrain::Check::Copies}) {
    Twin(options().check(check)).of([](auto wrap, Step& step) {
      const auto w = step.leaf(torch::randn({4}));
      step.backward(wrap([w](const Tensor& t) {
        return torch::_efficientzerotensor({4}) * w + t.sin();
      })(step.leaf(torch::randn({4}))));
    });
  }
}

TEST_P(OddRegions, ADryRunOnTheMetaDevice) {
  const auto x = torch::randn({4, 8}, torch::kMeta).requires_grad_();
  const auto w = torch::randn({8, 8}, torch::kMeta).requires_grad_();
  quiet([w](const Tensor& t) { return t.mm(w).sin().exp(); })(x).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_TRUE(w.grad().is_meta());
}

}  // namespace
