// SPDX-License-Identifier: BSD-3-Clause
// K7: arguments and results of every form. A13, A14 and their siblings.
#include "support/routes.hpp"
#include "support/twin.hpp"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace mine {

struct Out {
  torch::Tensor a;
  std::vector<torch::Tensor> b;
  std::map<std::string, torch::Tensor> c;
  int count = 0;
};

/// Teaches Refrain where the tensors of an `Out` are.
template <class Visitor>
void visit_tensors(Out& out, Visitor&& visit) {
  visit(out.a);
  visit(out.b);
  visit(out.c);
}

}  // namespace mine

namespace {

using torch::Tensor;

class Shapes : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Shapes, support::kBothRoutes, support::route_name);

TEST_P(Shapes, A13_NoneNumbersAndStringsAreLegalArguments) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    auto region = wrap([](Tensor t, Tensor none, std::optional<Tensor> maybe, int n, double scale,
                          std::string kind) {
      EXPECT_FALSE(none.defined());
      EXPECT_FALSE(maybe.has_value());
      return kind == "gelu" ? torch::gelu(t * scale).pow(n) : t;
    });
    step.backward(region(x, Tensor(), std::optional<Tensor>{}, 3, 0.5, std::string("gelu")));
  });
}

TEST_P(Shapes, APresentOptionalTensorGetsItsGradient) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    const auto bias = step.leaf(torch::randn({4}));
    auto region = wrap([](Tensor t, std::optional<Tensor> b) { return (b ? t * *b : t).sin(); });
    step.backward(region(x, std::optional<Tensor>(bias)), region(x, std::nullopt));
  });
}

TEST_P(Shapes, AVectorOfTensorsGoesInAndComesOut) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    std::vector<Tensor> xs{step.leaf(torch::randn({4})), step.leaf(torch::randn({4}))};
    auto region = wrap([](std::vector<Tensor> ts) {
      for (auto& t : ts) t = t.sin() * ts[0];
      return ts;
    });
    const auto ys = region(xs);
    ASSERT_EQ(ys.size(), 2U);
    step.backward(ys[0], ys[1]);
  });
}

TEST_P(Shapes, AMapOfTensorsGoesInAndComesOut) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    std::map<std::string, Tensor> in{{"q", step.leaf(torch::randn({4}))},
                                     {"k", step.leaf(torch::randn({4}))}};
    auto region = wrap([](std::map<std::string, Tensor> m) {
      m["both"] = m["q"].sin() * m["k"].exp();
      return m;
    });
    auto out = region(in);
    step.backward(out.at("both"), out.at("q"));
  });
}

TEST_P(Shapes, A14_AStructOfTheUsersOwnKeepsItsTypeAndItsGradients) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    auto region = wrap(
        [](Tensor t) { return mine::Out{t.sin(), {t.exp(), t.cos()}, {{"last", t.tanh()}}, 7}; });
    const mine::Out out = region(x);
    EXPECT_EQ(out.count, 7);
    ASSERT_EQ(out.b.size(), 2U);
    for (const auto& leaf : {out.a, out.b[0], out.b[1], out.c.at("last")}) {
      EXPECT_TRUE(leaf.requires_grad());
    }
    step.backward(out.a, out.b[0], out.b[1], out.c.at("last"));
  });
}

TEST_P(Shapes, AStructOfTheUsersOwnIsAnArgumentToo) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const mine::Out in{step.leaf(torch::randn({4})), {step.leaf(torch::randn({4}))}, {}, 2};
    auto region = wrap([](mine::Out o) { return (o.a * o.b[0]).pow(o.count); });
    step.backward(region(in));
  });
}

TEST_P(Shapes, TuplesPairsArraysAndOptionalsNest) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    auto region = wrap([](Tensor t) {
      return std::make_tuple(std::make_pair(t.sin(), 3), std::array<Tensor, 2>{t.exp(), t.cos()},
                             std::optional<std::vector<Tensor>>({t.tanh()}),
                             std::optional<Tensor>());
    });
    const auto [pair, array, maybe, none] = region(x);
    EXPECT_EQ(pair.second, 3);
    EXPECT_FALSE(none.has_value());
    step.backward(pair.first, array[0], array[1], maybe->at(0));
  });
}

TEST_P(Shapes, AnUndefinedResultStaysUndefined) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    const auto [y, none] = wrap([](Tensor t) { return std::make_tuple(t.sin(), Tensor()); })(x);
    EXPECT_FALSE(none.defined());
    step.backward(y);
  });
}

TEST_P(Shapes, ArgumentsAreCapturedByValue) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    const auto x = step.leaf(torch::randn({4}));
    std::vector<double> scales{1.5, 2.5};
    const auto y =
        wrap([](Tensor t, std::vector<double> s) { return (t * s[0]).sin() * s[1]; })(x, scales);
    scales.clear();
    step.backward(y);
  });
}

TEST_P(Shapes, AConstReferenceParameterIsServed) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto region = wrap(
        [](const Tensor& t, const std::string& how) { return how == "sin" ? t.sin().exp() : t; });
    Tensor y;
    {
      const std::string how = "sin";
      y = region(step.leaf(torch::randn({4})), how);
    }
    step.backward(y);
  });
}

TEST_P(Shapes, ALayerOfTwoResultsKeepsThem) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto lstm = step.watch(torch::nn::LSTM(torch::nn::LSTMOptions(4, 5)));
    auto layer = wrap(lstm);
    const auto [out, state] = layer(step.leaf(torch::randn({3, 2, 4})));
    step.backward(out, std::get<0>(state), std::get<1>(state));
  });
}

}  // namespace
