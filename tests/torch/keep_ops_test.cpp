// SPDX-License-Identifier: BSD-3-Clause
// policy::keep_ops and its kin: operators whose results the replay takes from the first run.
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/run_counter.hpp"
#include "support/stacks.hpp"
#include "support/twin.hpp"
#include <refrain/keep.hpp>
#include <refrain/policy/ops.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace nn = torch::nn;
using refrain::CheckpointOptions;
using refrain::OptionError;
using support::expect_says;
using torch::Tensor;
namespace policy = refrain::policy;

std::atomic<int> kernel_runs = 0;

Tensor counted_square_kernel(const Tensor& x) {
  ++kernel_runs;
  return x * x;
}

/// An operator that counts how often its kernel runs, and its derivative.
struct CountedSquare : torch::autograd::Function<CountedSquare> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("refrain_keep_test::square", "")
                               .typed<Tensor(const Tensor&)>();
    return op.call(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {2 * context->get_saved_variables()[0] * gradients[0]};
  }
};

Tensor counted_square(const Tensor& x) { return CountedSquare::apply(x); }

const std::string kSquare = "refrain_keep_test::square";

class KeepOps : public support::OnBothRoutes {
 protected:
  void SetUp() override {
    OnBothRoutes::SetUp();
    kernel_runs = 0;
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, KeepOps, support::kBothRoutes, support::route_name);

/// Matrix products, a convolution, attention with and without the fused kernel, dropout, and
/// everything between.
struct MixedImpl : nn::Module {
  MixedImpl() {
    up = register_module("up", nn::Linear(8, 16));
    down = register_module("down", nn::Linear(16, 8));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
    conv = register_module("conv", nn::Conv1d(nn::Conv1dOptions(8, 8, 3).padding(1)));
    batch = register_module("batch", nn::BatchNorm1d(8));
    drop = register_module("drop", nn::Dropout(0.3));
  }
  Tensor forward(const Tensor& x) {
    const auto h = drop(down(torch::gelu(up(norm(x)))));
    const auto mixed = batch(conv(h.transpose(1, 2))).transpose(1, 2).relu_();
    const auto eager = torch::softmax(torch::matmul(h, mixed.transpose(1, 2)), 2).matmul(mixed);
    const auto q = h.unsqueeze(1);
    const auto fused = at::scaled_dot_product_attention(q, q, mixed.unsqueeze(1)).squeeze(1);
    return x + eager + drop(fused);
  }
  nn::Linear up = nullptr, down = nullptr;
  nn::LayerNorm norm = nullptr;
  nn::Conv1d conv = nullptr;
  nn::BatchNorm1d batch = nullptr;
  nn::Dropout drop = nullptr;
};
TORCH_MODULE(Mixed);

TEST_P(KeepOps, EveryPolicyIsExact) {
  for (const auto& how :
       {policy::keep_matmuls(), policy::keep_attention(), policy::keep_random(),
        policy::keep_matmuls() + policy::keep_attention() + policy::keep_random(),
        policy::replay_norms_and_activations(), policy::keep_ops({"gelu", "softmax", "conv1d"}),
        policy::keep_ops({"linear", "matmul", "scaled_dot_product_attention", "layer_norm"}),
        policy::keep_ops({"aten::mul", "add", "aten::exp", "_softmax", "relu"}),
        policy::keep_matmuls().where(
            [](const refrain::OpCall& call) { return call.ordinal % 2 == 1; })}) {
    support::Twin(options().keep(how)).of([](auto wrap, support::Step& step) {
      auto block = step.watch(Mixed());
      auto region = wrap([block](const Tensor& x) mutable { return block(x); });
      const auto x = step.leaf(torch::randn({2, 5, 8}));
      step.backward(region(region(x)));
    });
    if (HasFailure()) {
      ADD_FAILURE() << how.describe();
      break;
    }
  }
}

TEST_P(KeepOps, TheKernelDoesNotRunAgain) {
  const auto run = [&](const CheckpointOptions& how) {
    auto region = refrain::checkpoint(
        [](const Tensor& x) { return counted_square(counted_square(x.sin())).exp(); }, how);
    kernel_runs = 0;
    region(torch::randn({4}).requires_grad_()).sum().backward();
    return kernel_runs.load();
  };
  EXPECT_EQ(run(options()), 4);
  EXPECT_EQ(run(options().keep(policy::keep_ops({kSquare}))), 2);
}

TEST_P(KeepOps, APredicateSeesEachCall) {
  std::vector<refrain::OpCall> seen;
  std::vector<std::string> names;
  const auto second = policy::keep_ops({kSquare}).where([&](const refrain::OpCall& call) {
    seen.push_back(call);
    names.emplace_back(call.op);
    return call.ordinal == 1;
  });
  auto region = refrain::checkpoint(
      [](const Tensor& x) {
        return counted_square(counted_square(x.sin()).expand({3, 4}).contiguous()).exp();
      },
      options().keep(second));
  kernel_runs = 0;
  region(torch::randn({4}).requires_grad_()).sum().backward();
  EXPECT_EQ(kernel_runs, 3);
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(names[1], kSquare);
  EXPECT_EQ(seen[0].ordinal, 0);
  EXPECT_EQ(seen[1].ordinal, 1);
  EXPECT_EQ(seen[1].inputs, (std::vector<std::vector<std::int64_t>>{{3, 4}}));
  EXPECT_EQ(seen[1].bytes, 3 * 4 * 4);
}

TEST_P(KeepOps, AKeptResultThatIsChangedInPlaceIsComputedAgain) {
  support::Twin(options().keep(policy::keep_ops({kSquare}))).of([](auto wrap, support::Step& step) {
    auto region = wrap([](const Tensor& x) {
      auto y = counted_square(x.sin());
      y.mul_(3);
      return counted_square(y).exp();
    });
    step.backward(region(step.leaf(torch::randn({4}))));
  });
  EXPECT_EQ(kernel_runs, 5);  // plain 2; checkpointed 2, and the first again
}

// Whether a product ran again is told by weights that change behind autograd's back.
TEST_P(KeepOps, ALinearLayersBiasIsAPartOfItsResult) {
  for (const auto& shape : {std::vector<std::int64_t>{5, 4}, std::vector<std::int64_t>{2, 5, 4}}) {
    nn::Linear linear(4, 4);
    const auto x = torch::randn(shape).requires_grad_();
    const auto slope = [&](auto region) {
      const auto weight = linear->weight.detach().clone();
      const auto y = region(x).sum();
      linear->weight.data().zero_();
      const auto gradient = torch::autograd::grad({y}, {linear->bias})[0];
      linear->weight.data().copy_(weight);
      return gradient;
    };
    const auto body = [=](const Tensor& t) mutable {
      auto y = linear(t);
      return torch::relu_(y).exp();
    };
    const auto plain = slope(body);
    EXPECT_TRUE(torch::equal(
        slope(refrain::checkpoint(body, options().keep(policy::keep_matmuls()))), plain));
    EXPECT_FALSE(torch::equal(slope(refrain::checkpoint(body, options())), plain));
  }
}

TEST_P(KeepOps, ChangesInPlaceAfterAKeptCallAreExact) {
  using Body = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::vector<Body> bodies = {
      [](const Tensor& a, const Tensor& b) { return torch::matmul(a, b).add_(b[0]).tanh(); },
      [](const Tensor& a, const Tensor& b) {
        auto y = torch::matmul(a, b);
        const auto early = y * 2;  // reads what it was before
        y += b[0];
        return y.tanh() + early.sin();
      },
      [](const Tensor& a, const Tensor& b) {
        auto y = torch::matmul(a, b);
        y += 1;
        y.sub_(b[1]);
        y.relu_();
        return y.exp();
      },
      [](const Tensor& a, const Tensor& b) {
        auto y = torch::mm(a[0], b);
        y.mul_(b[0]);  // saves what it was
        y += 1;
        return y.sin();
      },
      [](const Tensor& a, const Tensor& b) {
        auto y = torch::mm(a[0], b);
        y[0].add_(1);
        return y.sin().add_(torch::mm(a[1], b).tanh_());
      },
      [](const Tensor& a, const Tensor& b) {
        auto x = torch::mm(a[0], b).tanh_();
        x = torch::mm(x, b).sigmoid_();
        return torch::mm(x, b).add_(x).add_(1).relu_();
      }};
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    for (const bool retained : {false, true}) {
      support::Twin(options().keep(policy::keep_matmuls())).of([&](auto wrap, support::Step& step) {
        auto region = wrap(bodies[i]);
        const auto a = step.leaf(torch::randn({2, 3, 4}));
        const auto b = step.leaf(torch::randn({4, 4}));
        const auto loss = step.loss({region(a, b)});
        if (retained) loss.backward({}, /*retain_graph=*/true);
        loss.backward();
      });
      EXPECT_FALSE(HasFailure()) << "body " << i;
    }
  }
}

TEST_P(KeepOps, AResultChangedAfterTheRegionIsComputedAgain) {
  support::Twin(options().keep(policy::keep_ops({"sin"}))).of([](auto wrap, support::Step& step) {
    auto region = wrap([](const Tensor& x) {
      const auto inner = x.exp();
      return std::make_tuple((inner * x).cos(), inner.detach().sin());
    });
    auto [y, kept] = region(step.leaf(torch::randn({4})));
    kept.zero_();
    step.backward(y);
  });
}

TEST_P(KeepOps, AlsoTwiceThroughARetainedGraph) {
  auto region = refrain::checkpoint([](const Tensor& x) { return counted_square(x.sin()).exp(); },
                                    options().keep(policy::keep_ops({kSquare})));
  const auto x = torch::randn({4}).requires_grad_();
  const auto y = region(x).sum();
  kernel_runs = 0;
  y.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(kernel_runs, 0);
  y.backward();
  EXPECT_EQ(kernel_runs, 0);
}

TEST_P(KeepOps, WhatAKernelCallsIsItsOwnAffair) {
  // The kernel of the determinant multiplies in place what products gave it, uncounted.
  support::Twin(options().keep(policy::keep_ops({"mul", "prod", "sum", "mm"})))
      .of([](auto wrap, support::Step& step) {
        auto region = wrap([](const Tensor& x) { return torch::det(x.sin()).exp() * x; });
        step.backward(region(step.leaf(torch::randn({3, 3}))));
      });
}

TEST_P(KeepOps, ABackwardPassInTheBodyIsNotCounted) {
  support::Twin(options().keep(policy::keep_ops({"mul", "add", "sin", "cos", "tanh"})))
      .of([](auto wrap, support::Step& step) {
        const auto x = step.leaf(torch::randn({4}));
        const auto before = (x * x).tanh();
        auto region = wrap([=](const Tensor& t) {
          const auto y = (t * before).sin();
          const auto slope = torch::autograd::grad({y.sum()}, {t}, {}, true, true)[0];
          return (slope * t).tanh();
        });
        step.backward(region(x.exp()));
      });
}

TEST_P(KeepOps, RandomNumbersStayInStep) {
  for (const auto& how :
       {policy::keep_random(), policy::keep_ops({"bernoulli.p"}),
        policy::keep_random().where([](const refrain::OpCall& call) { return call.ordinal != 1; }),
        policy::keep_random().where(
            [](const refrain::OpCall& call) { return call.ordinal == 1; })}) {
    support::Twin(options().keep(how)).of([](auto wrap, support::Step& step) {
      auto region = wrap([](const Tensor& x) {
        auto y = torch::dropout(x.sin(), 0.4, true);
        y = y + torch::rand_like(y) * torch::randn({4});
        y = y * torch::bernoulli(y.detach().sigmoid());
        y = y * at::bernoulli(y.detach(), 0.6);
        y = y + torch::randint(5, {4}).to(torch::kFloat) * torch::randperm(4).to(torch::kFloat);
        y = y + at::normal(x.detach(), 2.0) + torch::rrelu(y, 0.1, 0.3, true);
        return torch::dropout(y.exp().log1p(), 0.4, true).sin();
      });
      step.backward(region(step.leaf(torch::randn({4}))));
    });
    if (HasFailure()) {
      ADD_FAILURE() << how.describe();
      break;
    }
  }
}

TEST_P(KeepOps, WhatWasDrawnFromAGeneratorThatNobodyKnowsIsKept) {
  auto own = at::make_generator<at::CPUGeneratorImpl>(5);
  auto region = refrain::checkpoint(
      [&](const Tensor& x) {
        const auto noise = torch::empty_like(x).normal_(0, 1, own);
        return (x * noise).sin();
      },
      options().keep(policy::keep_random()));
  const auto x = torch::randn({4}).requires_grad_();
  auto same = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto noise = torch::empty_like(x).normal_(0, 1, same);
  region(x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), (x.detach() * noise).cos() * noise));
}

TEST_P(KeepOps, AnInnerRegionWithoutAPolicyIsAPartOfTheOuterOne) {
  auto inner = quiet([](const Tensor& x) { return counted_square(x.sin()).exp(); });
  auto outer =
      refrain::checkpoint([&](const Tensor& x) { return inner(counted_square(x.cos())).tanh(); },
                          options().keep(policy::keep_ops({kSquare})));
  outer(torch::randn({4}).requires_grad_()).sum().backward();
  EXPECT_EQ(kernel_runs, 3);  // both once, and the inner region's own replay
}

TEST_P(KeepOps, ARegionAroundOneThatKeepsRunsItAgain) {
  support::Twin(options()).of([&](auto wrap, support::Step& step) {
    auto inner = refrain::checkpoint([](const Tensor& x) { return counted_square(x.sin()).exp(); },
                                     options().keep(policy::keep_ops({kSquare})));
    auto outer = wrap([&](const Tensor& x) { return inner(x.cos()).tanh(); });
    step.backward(outer(step.leaf(torch::randn({4}))));
  });
}

TEST_P(KeepOps, InsideKeptCodeTheyDoNotCount) {
  support::Twin(options().keep(policy::keep_ops({kSquare, "sin"})))
      .of([](auto wrap, support::Step& step) {
        auto region = wrap([](const Tensor& x) {
          const auto a = refrain::keep("a", [&] { return counted_square(x.detach()).sin(); });
          return counted_square((a * x).sin()).exp();
        });
        step.backward(region(step.leaf(torch::randn({4}))));
      });
}

TEST_P(KeepOps, AGradientTakenInsideTheBody) {
  support::Twin(options().keep(policy::keep_matmuls())).of([](auto wrap, support::Step& step) {
    auto linear = step.watch(nn::Linear(4, 4));
    auto region = wrap([=](const Tensor& x) mutable {
      const auto hidden = x.detach().requires_grad_();
      const auto slope = torch::autograd::grad({linear(hidden).exp().sum()}, {hidden})[0];
      return linear(x * slope).sin();
    });
    step.backward(region(step.leaf(torch::randn({3, 4}))));
  });
}

TEST_P(KeepOps, UnderAutocast) {
  support::Twin(options().keep(policy::keep_matmuls() + policy::keep_attention()))
      .of([](auto wrap, support::Step& step) {
        auto block = step.watch(Mixed());
        auto region = wrap([block](const Tensor& x) mutable { return block(x); });
        at::autocast::set_autocast_enabled(at::kCPU, true);
        const auto y = region(step.leaf(torch::randn({2, 5, 8})));
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        step.backward(y.to(torch::kFloat));
      });
}

TEST_P(KeepOps, AnotherPathIsAnError) {
  bool other = false;
  auto region = refrain::checkpoint(
      [&](const Tensor& x) {
        const auto& y = other ? x.cos() : counted_square(x);
        return (counted_square(other ? y.expand({2, 4}) : y) * 2).exp();
      },
      options().keep(policy::keep_ops({kSquare})).name("twisted"));
  const auto y = region(torch::randn({4}).requires_grad_());
  other = true;
  expect_says<refrain::DivergenceError>({"`twisted`"}, [&] { y.sum().backward(); });
}

TEST_P(KeepOps, TwoThreadsAtOnce) {
  auto block = Mixed();
  block->eval();
  const auto step = [&](const Tensor& x) {
    auto region = refrain::checkpoint([=](const Tensor& t) mutable { return block(t); },
                                      options().keep(policy::keep_matmuls()));
    return torch::autograd::grad({region(x).sum()}, {x})[0];
  };
  const auto x = torch::randn({2, 5, 8}).requires_grad_();
  const auto expected = step(x);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      at::set_num_threads(1);
      const auto own = x.detach().clone().requires_grad_();
      for (int k = 0; k < 50; ++k) wrong += torch::equal(step(own), expected) ? 0 : 1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(KeepOpsNames, AreRefusedAtOnceWhereTheyMeanNothing) {
  const auto refused = [](const char* name, std::initializer_list<const char*> said) {
    expect_says<OptionError>(said, [&] { (void)CheckpointOptions(policy::keep_ops({name})); });
  };
  refused("aten::admm", {"`aten::admm`: there is no such operator", "near names: ", "aten::addmm"});
  refused("matmull", {"no such operator", "aten::matmul"});
  refused("nothing::at_all", {"no such operator"});
  refused("aten::relu_", {"writes into its arguments"});
  refused("aten::add.out", {"writes into its arguments"});
  refused("aten::view", {"returns a view"});
  refused("aten::native_batch_norm", {"writes"});
  refused("aten::dropout", {"is made of other operators"});
  refused("aten::randn", {"takes no tensor"});
  refused("aten::size.int", {"returns no tensor"});
  EXPECT_NO_THROW((void)CheckpointOptions(policy::keep_ops({"aten::add.Tensor", "addmm"})));
}

TEST(KeepOpsNames, PoliciesSayWhatTheyAre) {
  EXPECT_EQ(fmt::format("{}", policy::keep_matmuls() + policy::keep_named({"a", "b"})),
            "keep_matmuls() + keep_named(a, b)");
  EXPECT_EQ(to_string(CheckpointOptions(policy::keep_ops({"aten::mm"}))),
            "hooks, keeps keep_ops(aten::mm)");
}

}  // namespace

TORCH_LIBRARY(refrain_keep_test, library) {
  library.def("square(Tensor x) -> Tensor");
  library.impl("square", c10::DispatchKey::CPU, &counted_square_kernel);
}
