// SPDX-License-Identifier: BSD-3-Clause
// Where kept results and values meet what else a body may do.
#include "support/messages.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/keep.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace {

namespace nn = torch::nn;
using refrain::Check;
using refrain::CheckpointOptions;
using refrain::keep;
using refrain::once;
using support::expect_says;
using torch::Tensor;
namespace policy = refrain::policy;

/// A product, and a second result that reads it before the caller can.
std::tuple<Tensor, Tensor> product_and_reader(const Tensor& x, const Tensor& w) {
  auto y = x.mm(w);
  auto z = y.detach().tanh();
  return {y, z};
}

int handed_on_runs = 0;

/// A custom operator as tutorials write them: its autograd kernel calls it once more, below.
struct HandedOn : torch::autograd::Function<HandedOn> {
  static Tensor call(const Tensor& x) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("refrain_edges::handed_on", "")
                               .typed<Tensor(const Tensor&)>();
    return op.call(x);
  }
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    const at::AutoDispatchBelowADInplaceOrView below;
    return call(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {2 * context->get_saved_variables()[0] * gradients[0]};
  }
};

class KeepEdges : public support::OnBothRoutes {
 protected:
  using Body = std::function<Tensor(const Tensor& x, const Tensor& w)>;

  /// Expects `body` to do under a policy what it does plainly.
  void is_exact(const policy::OpPolicy& how, const Body& body) const {
    support::Twin(options().keep(how)).of([&](auto wrap, support::Step& step) {
      auto region = wrap(body);
      const auto x = step.leaf(torch::randn({4, 4}));
      const auto w = step.leaf(torch::randn({4, 4}));
      step.backward(region(x, w));
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Routes, KeepEdges, support::kBothRoutes, support::route_name);

TEST_P(KeepEdges, AReaderInTheSameOperatorSeesTheProductBeforeItsBias) {
  is_exact(policy::keep_matmuls(), [](const Tensor& x, const Tensor& w) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("refrain_edges::product_and_reader", "")
                               .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&)>();
    auto [y, z] = op.call(x, w);
    y.add_(w[0]);
    return (y * z).pow(2);
  });
}

TEST_P(KeepEdges, ChangesThatNoVersionCounts) {
  is_exact(policy::keep_matmuls(), [](const Tensor& x, const Tensor& w) {
    auto y = x.mm(w);
    y.data().mul_(2);
    return y.mul(0.5).tanh().pow(2);
  });
  is_exact(policy::keep_matmuls(), [](const Tensor& x, const Tensor& w) {
    Tensor y;
    {
      const c10::InferenceMode on;
      y = x.detach().mm(w.detach());
      y.mul_(2);
    }
    return y.clone() * w;
  });
  is_exact(policy::keep_matmuls(), [](const Tensor& x, const Tensor& w) {
    const auto mean = x.detach().mv(w.detach()[0]);
    const auto y = torch::batch_norm(x, {}, {}, mean, torch::ones({4}), true, 0.1, 1e-5, false);
    return (y * mean * w).pow(2);
  });
}

TEST_P(KeepEdges, AChosenOperatorThatThrowsIsCaught) {
  is_exact(policy::keep_matmuls(), [](const Tensor& x, const Tensor& w) {
    Tensor y;
    try {
      y = x.mm(torch::ones({3, 3}));
    } catch (const std::exception&) {
      y = x.mm(w);
    }
    return y.tanh().mm(w).pow(2);
  });
}

TEST_P(KeepEdges, UnsafeViewsCannotBeChosen) {
  expect_says<refrain::OptionError>(
      {"returns a view"}, [] { (void)CheckpointOptions(policy::keep_ops({"_unsafe_view"})); });
}

TEST_P(KeepEdges, APredicateIsNotAskedWhereAnotherRuleKeepsAll) {
  is_exact(policy::keep_ops({"mm"}).where([](const refrain::OpCall& call) {
    return call.inputs.at(0).at(0) > 4;
  }) + policy::keep_matmuls(),
           [](const Tensor& x, const Tensor& w) { return x.mm(w).tanh(); });
}

TEST_P(KeepEdges, ACustomOperatorThatHandsOnIsKept) {
  handed_on_runs = 0;
  auto region = refrain::checkpoint([](const Tensor& x) { return HandedOn::call(x.sin()).exp(); },
                                    options().keep(policy::keep_ops({"refrain_edges::handed_on"})));
  region(torch::randn({3}).requires_grad_()).sum().backward();
  EXPECT_EQ(handed_on_runs, 1);
}

TEST_P(KeepEdges, NestedAndMetaTensorsPass) {
  is_exact(policy::keep_matmuls() + policy::keep_random(), [](const Tensor& x, const Tensor& w) {
    (void)torch::empty({3}, torch::kMeta).bernoulli_();
    const auto nested = at::_nested_tensor_from_tensor_list({x.detach()[0], x.detach()[1]});
    (void)at::_nested_tensor_from_tensor_list({x.detach(), x.detach()})
        .bmm(at::_nested_tensor_from_tensor_list({w.detach(), w.detach()}));
    return (x * w).sin() * nested.size(0);
  });
}

TEST_P(KeepEdges, CodeThatThrowsAndIsCaughtThrowsAgain) {
  const auto bad = torch::ones({1});
  is_exact({}, [=](const Tensor& x, const Tensor& w) {
    Tensor y;
    double scale = 1;
    try {
      y = keep("route", [&]() -> Tensor {
        if (bad.item<float>() > 0) throw std::runtime_error("no route");
        return 2 * x.detach();
      });
    } catch (const std::runtime_error&) {
      scale = 3;
      y = keep("route", [&] { return 3 * x.detach(); });
    }
    return (x * y * scale * w).tanh();
  });
}

TEST_P(KeepEdges, AnAliasOfABufferThatTheRegionWroteBefore) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto buffer = torch::ones({4});
    auto region = wrap([=](const Tensor& x) {
      {
        const torch::NoGradGuard no_grad;
        buffer.add_(1);
      }
      const auto kept = keep("buffer", [&] { return buffer; });
      return (x * kept).pow(2);
    });
    step.backward(region(step.leaf(torch::randn({4, 4}))));
    step.note("buffer", buffer);
  });
}

TEST_P(KeepEdges, AValueChangedBehindAutogradsBackIsAnError) {
  auto region = quiet([](const Tensor& x) {
    const auto scale = keep("scale", [&] { return x.detach().sin(); });
    scale.data().mul_(2);
    return (x * scale).exp();
  });
  const auto y = region(torch::randn({3}).requires_grad_());
  expect_says<refrain::DivergenceError>({"keep(\"scale\") gave was changed in place"},
                                        [&] { y.sum().backward(); });
}

TEST_P(KeepEdges, AValueWhoseMemoryTheRegionChangesLaterIsAnError) {
  const auto w = torch::randn({3}).requires_grad_();
  const auto fails = [](auto region, const Tensor& x) {
    const Tensor y = region(x);
    expect_says<refrain::DivergenceError>({"keep(\"v\") gave was changed in place"},
                                          [&] { y.sum().backward(); });
  };
  fails(quiet([=](const Tensor& x) {
          const auto v = keep("v", [&] { return x; });
          x.add_(1);
          return (v.clone() * w).exp();
        }),
        torch::randn({3}));
  const auto buffer = torch::ones({3});
  fails(quiet([=](const Tensor& x) {
          const auto v = keep("v", [&] { return buffer; });
          buffer.add_(1);
          return (v.clone() * x).exp();
        }),
        torch::randn({3}).requires_grad_());
  fails(quiet([](const Tensor& x) {
          Tensor v;
          {
            const c10::InferenceMode on;
            v = keep("v", [&] { return x.detach().sin(); });
            v.mul_(2);
          }
          return (v.clone() * x).exp();
        }),
        torch::randn({3}).requires_grad_());
}

TEST_P(KeepEdges, EachRegionOfANestPutsItsOwnGeneratorsBack) {
  using refrain::Rng;
  auto own = at::make_generator<at::CPUGeneratorImpl>(5);
  for (const auto& [outside, inside] : {std::pair(options(), options().rng(Rng::Ignore)),
                                        std::pair(options().generators({own}), options())}) {
    const auto step = [&, outside = outside, inside = inside](bool plainly) {
      torch::manual_seed(3);
      own.set_current_seed(3);
      const auto x = torch::linspace(-1, 1, 16).view({4, 4}).requires_grad_();
      auto inner = refrain::checkpoint(
          [&](const Tensor& t) {
            const auto mask = keep("mask", [&] {
              return torch::rand({4, 4}) * torch::empty({4, 4}).uniform_(0, 1, own);
            });
            once([] { (void)torch::rand({2}); });
            return (t * mask).sin();
          },
          inside);
      auto outer = refrain::checkpoint(
          [&](const Tensor& t) { return torch::dropout(inner(t.cos()), 0.5, true).exp(); },
          outside);
      std::vector<Tensor> left;
      if (plainly) {
        const refrain::PlainScope plain;
        outer(x).sum().backward();
      } else {
        outer(x).sum().backward();
      }
      return std::vector<Tensor>{x.grad(), torch::rand({2})};
    };
    const auto plain = step(true);
    const auto quiet = step(false);
    EXPECT_TRUE(torch::equal(plain[0], quiet[0]));
    EXPECT_TRUE(torch::equal(plain[1], quiet[1]));
  }
}

TEST(KeepInnerGradients, ThroughAKeptValueAreRefusedInTheReplay) {
  const auto w = torch::randn({4}).requires_grad_();
  auto region = refrain::checkpoint([=](const Tensor& x) {
    const auto v = keep("v", [&] { return (x * w).tanh(); });
    const auto y = v * x;
    const auto slope = torch::autograd::grad({y.sum()}, {x}, {}, true, false)[0];
    return (slope * w).pow(2);
  });
  const auto y = region(torch::randn({4}).requires_grad_());
  expect_says<refrain::Error>({"keep(\"v\")", "detach the kept value first"},
                              [&] { y.sum().backward(); });
}

TEST(ValuesOfHonestCode, StatisticsThatTheRegionMade) {
  auto region = refrain::checkpoint(
      [](const Tensor& x) {
        const auto mean = torch::zeros({4});
        const auto variance = torch::ones({4});
        const auto y = torch::batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5, false);
        return torch::batch_norm(y.exp(), {}, {}, mean, variance, true, 0.1, 1e-5, false).sin();
      },
      Check::Values);
  EXPECT_NO_THROW(region(torch::randn({5, 4}).requires_grad_()).sum().backward());
}

TEST(ValuesOfHonestCode, WorkspacesThatNobodyFills) {
  auto lstm = nn::LSTM(nn::LSTMOptions(8, 16).num_layers(2));
  auto region = refrain::checkpoint(
      [=](const Tensor& x) mutable { return std::get<0>(lstm(x)).sin(); }, Check::Values);
  for (int step = 0; step < 20; ++step) {
    const auto dirt = torch::randint(255, {100000 + step}, torch::kByte);
    const auto x = torch::randn({5, 3, 8}).requires_grad_();
    const auto y = region(x);
    const auto more = torch::randint(255, {94208}, torch::kByte);
    EXPECT_NO_THROW(y.sum().backward());
  }
}

}  // namespace

TORCH_LIBRARY(refrain_edges, library) {
  library.def("product_and_reader(Tensor x, Tensor w) -> (Tensor, Tensor)", &product_and_reader);
  library.def("handed_on(Tensor x) -> Tensor");
  library.impl("handed_on", c10::DispatchKey::CPU, [](const Tensor& x) {
    ++handed_on_runs;
    return x * x;
  });
  library.impl("handed_on", c10::DispatchKey::Autograd,
               [](const Tensor& x) { return HandedOn::apply(x); });
}
