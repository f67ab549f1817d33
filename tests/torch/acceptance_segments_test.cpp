// SPDX-License-Identifier: BSD-3-Clause
// K14: how a chain is cut, and what is refused. A24 and its siblings.
#include "support/messages.hpp"
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/checkpoint_sequential.hpp>

#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace {

using support::expect_says;
using torch::Tensor;
namespace policy = refrain::policy;
using policy::LastSegment;

class Segments : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Segments, support::kBothRoutes, support::route_name);

/// Writes its number into a shared log whenever it runs.
struct LoggedImpl : torch::nn::Module {
  LoggedImpl(int mine, std::shared_ptr<std::vector<int>> shared)
      : linear(register_module("linear", torch::nn::Linear(4, 4))), number(mine), log(shared) {}
  Tensor forward(Tensor x) {
    log->push_back(number);
    return linear(x).tanh();
  }
  torch::nn::Linear linear;
  int number;
  std::shared_ptr<std::vector<int>> log;
};
TORCH_MODULE(Logged);

struct Layers {
  explicit Layers(int count) {
    for (int i = 0; i < count; ++i) {
      all.push_back(Logged(i, log));
      sequential->push_back(all.back());
    }
  }

  /// What ran in backward, newest segment first: one inner list a replay.
  template <class Stack>
  std::vector<std::vector<int>> replays(Stack stack) const {
    const auto y = stack(torch::randn({2, 4}));
    log->clear();
    y.sum().backward();
    std::vector<std::vector<int>> cut;
    for (const int number : *log) {
      if (cut.empty() || number != cut.back().back() + 1) cut.emplace_back();
      cut.back().push_back(number);
    }
    return cut;
  }

  std::shared_ptr<std::vector<int>> log = std::make_shared<std::vector<int>>();
  std::vector<Logged> all;
  torch::nn::Sequential sequential;
};

using Cut = std::vector<std::vector<int>>;

TEST_P(Segments, A24_NineLayersInFiveSegmentsAre22221) {
  const Layers layers(9);
  const auto stack =
      refrain::checkpoint(layers.sequential, policy::segments(5, LastSegment::Replay), options());
  EXPECT_EQ(layers.replays(stack), (Cut{{8}, {6, 7}, {4, 5}, {2, 3}, {0, 1}}));
}

TEST_P(Segments, A24_TheLastSegmentIsPlainUnlessAskedFor) {
  const Layers layers(9);
  const auto stack = refrain::checkpoint(layers.sequential, policy::segments(5), options());
  EXPECT_EQ(layers.replays(stack), (Cut{{6, 7}, {4, 5}, {2, 3}, {0, 1}}));
}

TEST_P(Segments, AVectorOfBlocksIsCutTheSame) {
  const Layers layers(9);
  const auto stack = refrain::checkpoint(layers.all, policy::segments(5), options());
  EXPECT_EQ(layers.replays(stack), (Cut{{6, 7}, {4, 5}, {2, 3}, {0, 1}}));
}

TEST_P(Segments, EveryKTakesKAndTheRest) {
  const Layers layers(7);
  const auto stack =
      refrain::checkpoint(layers.sequential, policy::every(3, LastSegment::Replay), options());
  EXPECT_EQ(layers.replays(stack), (Cut{{6}, {3, 4, 5}, {0, 1, 2}}));
}

TEST_P(Segments, NoneReplaysNothing) {
  const Layers layers(4);
  EXPECT_EQ(layers.replays(refrain::checkpoint(layers.sequential, policy::none(), options())),
            Cut{});
}

/// Every ready policy over `count` layers with dropout and a norm among them.
template <class Policy>
auto stack_of(int count, Policy cut) {
  return [count, cut](auto wrap, support::Step& step) {
    torch::nn::Sequential layers;
    for (int i = 0; i < count; ++i) {
      if (i % 3 == 1) {
        layers->push_back(torch::nn::BatchNorm1d(6));
      } else {
        layers->push_back(support::Mlp(6, 0.2));
      }
    }
    auto stack = wrap(step.watch(layers), cut);
    for (int i = 0; i < 2; ++i) step.backward(stack->forward(step.leaf(torch::randn({5, 6}))));
  };
}

TEST_P(Segments, A24_EveryReadyPolicyIsATwin) {
  const std::map<std::string, policy::AnyPolicy> cuts{
      {"none", policy::none()},
      {"all", policy::all()},
      {"every(2)", policy::every(2)},
      {"every(9)", policy::every(9)},
      {"one_in(2)", policy::one_in(2)},
      {"first(3)", policy::first(3)},
      {"segments(1)", policy::segments(1)},
      {"segments(5)", policy::segments(5)},
      {"segments(9)", policy::segments(9)},
      {"sqrt_n", policy::sqrt_n()},
      {"binary", policy::binary()},
      {"replayed", policy::segments(5, LastSegment::Replay)},
      {"only", policy::only<support::Mlp>()},
      {"matching", policy::matching("3")},
      {"matching *", policy::matching("*")}};
  for (const auto& [name, cut] : cuts) {
    SCOPED_TRACE(name);
    support::Twin(options()).of(stack_of(9, cut));
  }
}

TEST_P(Segments, A24_MoreSegmentsThanLayersNamesBoth) {
  const Layers layers(3);
  expect_says<refrain::Error>({"refrain: ", "5", "3"}, [&] {
    auto stack = refrain::checkpoint(layers.sequential, policy::segments(5), options());
    stack(torch::randn({2, 4}));
  });
}

TEST_P(Segments, A24_ZeroAndNegativeAreRefused) {
  expect_says<refrain::Error>({"refrain: ", "0"}, [] { (void)policy::segments(0); });
  expect_says<refrain::Error>({"refrain: ", "-2"}, [] { (void)policy::segments(-2); });
  expect_says<refrain::Error>({"refrain: ", "0"}, [] { (void)policy::every(0); });
  expect_says<refrain::Error>({"refrain: ", "0"}, [] { (void)policy::one_in(0); });
}

TEST_P(Segments, ASettingReachesEverySegment) {
  // The third of four layers takes another path in its replay, and the complaint has the name.
  std::vector<std::function<Tensor(Tensor)>> layers(4, [](Tensor t) { return t.sin().exp(); });
  int calls = 0;
  layers[2] = [&calls](Tensor t) { return ++calls == 1 ? t.sin().exp() : t.sum(); };
  const auto how = options().name("tower");
  auto stack = refrain::checkpoint(layers, policy::every(1), how);
  const auto y = stack(torch::randn({3}).requires_grad_());
  expect_says<refrain::DivergenceError>({"tower"}, [&] { y.sum().backward(); });
}

}  // namespace
