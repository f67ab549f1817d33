// SPDX-License-Identifier: BSD-3-Clause
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/twin.hpp"
#include <refrain/checkpoint_sequential.hpp>

#include <torch/torch.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using support::Mlp;
using torch::Tensor;
namespace nn = torch::nn;
namespace policy = refrain::policy;

class InContainers : public support::OnBothRoutes {};
class WrappedSequential : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, InContainers, support::kBothRoutes, support::route_name);
INSTANTIATE_TEST_SUITE_P(Routes, WrappedSequential, support::kBothRoutes, support::route_name);

TEST_P(InContainers, ASequentialRunsAWrappedBlock) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layers = step.watch(nn::Sequential(nn::Linear(6, 6), wrap(Mlp(6, 0.3)), wrap(Mlp(6))));
    step.backward(layers->forward(step.leaf(torch::randn({4, 6}))));
  });
}

TEST_P(InContainers, ANamedSequentialRunsAWrappedBlock) {
  nn::Sequential layers(
      {{"in", nn::AnyModule(nn::Linear(6, 6))}, {"mid", nn::AnyModule(quiet(Mlp(6)))}});
  EXPECT_TRUE(layers->named_parameters().contains("mid.fc1.weight"));
  layers->forward(torch::randn({4, 6})).sum().backward();
  for (const auto& parameter : layers->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST_P(InContainers, ASequentialGivesItBackByItsType) {
  nn::Sequential layers(nn::Linear(6, 6), quiet(Mlp(6)));
  layers->forward(torch::randn({4, 6})).sum().backward();
  EXPECT_EQ(layers->at<refrain::Checkpoint<Mlp>::ContainedType>(1).inner()->runs, 2);
}

TEST_P(InContainers, AModuleListGivesItBackByItsType) {
  nn::ModuleList list(quiet(Mlp(6)), quiet(Mlp(6)));
  using Quiet = refrain::Checkpoint<Mlp>::ContainedType;
  Tensor x = torch::randn({4, 6});
  for (const auto& module : *list) x = module->as<Quiet>()->forward(x);
  x.sum().backward();
  EXPECT_EQ(list->ptr<Quiet>(0)->inner()->runs, 2);
}

TEST_P(InContainers, AModuleDictGivesItBackByItsType) {
  using Quiet = refrain::Checkpoint<Mlp>::ContainedType;
  using Item = std::pair<std::string, std::shared_ptr<nn::Module>>;
  nn::ModuleDict dict(std::vector<Item>{{"block", quiet(Mlp(6)).ptr()}});
  auto block = std::dynamic_pointer_cast<Quiet>(dict["block"]);
  ASSERT_TRUE(block);
  block->forward(torch::randn({4, 6})).sum().backward();
  EXPECT_EQ(block->inner()->runs, 2);
  EXPECT_TRUE(dict->named_parameters().contains("block.fc1.weight"));
}

TEST_P(InContainers, AnAnyModuleRunsIt) {
  nn::AnyModule any(quiet(Mlp(6)));
  any.forward(torch::randn({4, 6})).sum().backward();
  using Quiet = refrain::Checkpoint<Mlp>::ContainedType;
  EXPECT_EQ(any.get<Quiet>().inner()->runs, 2);
}

TEST_P(WrappedSequential, IsATwinOfThePlainOne) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layers = step.watch(nn::Sequential(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::GELU(),
                                            nn::Dropout(0.4), nn::Linear(8, 6)));
    auto stack = wrap(layers, policy::every(2));
    step.backward(stack->forward(step.leaf(torch::randn({4, 6}))));
  });
}

TEST_P(WrappedSequential, LeavesTheModulesUntouched) {
  nn::Sequential layers(nn::Linear(6, 6), Mlp(6));
  const auto first = layers->ptr(0);
  auto stack = refrain::checkpoint(layers, policy::all(), options());
  EXPECT_EQ(layers->ptr(0), first);
  EXPECT_NE(layers->at<support::MlpImpl>(1).fc1.ptr(), nullptr);
  layers->forward(torch::randn({4, 6})).sum().backward();
  EXPECT_EQ(layers->at<support::MlpImpl>(1).runs, 1) << "the Sequential itself is still plain";
}

TEST_P(WrappedSequential, MayBeginWithAModuleOfSeveralArguments) {
  struct JoinImpl : nn::Module {
    Tensor forward(Tensor a, Tensor b) { return a * b.sin(); }
  };
  using Join = nn::ModuleHolder<JoinImpl>;
  nn::Sequential layers(Join(), nn::Linear(4, 4), nn::Tanh());
  auto stack = refrain::checkpoint(layers, policy::every(2), options());
  const auto a = torch::randn({3, 4}).requires_grad_();
  const auto b = torch::randn({3, 4}).requires_grad_();
  EXPECT_TRUE(torch::equal(stack(a, b), layers->forward(a, b)));
  stack(a, b).sum().backward();
  EXPECT_TRUE(a.grad().defined() && b.grad().defined());
}

TEST_P(WrappedSequential, RunsASegmentWhoseBoundaryIsATuple) {
  nn::Sequential layers(nn::Linear(4, 4), nn::LSTM(4, 5));
  auto stack = refrain::checkpoint(layers, policy::all(), options());
  using Result = std::tuple<Tensor, std::tuple<Tensor, Tensor>>;
  const auto x = torch::randn({3, 2, 4});
  const auto [out, state] = stack->call<Result>(x);
  (out.sum() + std::get<1>(state).sum()).backward();
  for (const auto& parameter : stack->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST_P(WrappedSequential, IsAModuleInAModel) {
  struct NetImpl : nn::Module {
    explicit NetImpl(refrain::CheckpointSequential layers)
        : stack(register_module("stack", std::move(layers))) {}
    Tensor forward(Tensor x) { return head(stack(x)); }
    refrain::CheckpointSequential stack;
    nn::Linear head = register_module("head", nn::Linear(6, 2));
  };
  NetImpl net(refrain::checkpoint(nn::Sequential(Mlp(6), Mlp(6)), policy::all(), options()));
  EXPECT_TRUE(net.named_parameters().contains("stack.0.fc1.weight"));
  net.forward(torch::randn({4, 6})).sum().backward();
  for (const auto& parameter : net.parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST_P(WrappedSequential, MayHoldWrappedBlocks) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto layers = step.watch(nn::Sequential(wrap(Mlp(6, 0.2)), nn::Linear(6, 6), wrap(Mlp(6))));
    step.backward(wrap(layers, policy::every(2))->forward(step.leaf(torch::randn({4, 6}))));
  });
}

TEST_P(WrappedSequential, SharesNothingBetweenTwoCallsInFlight) {
  support::Twin(options()).of([](auto wrap, support::Step& step) {
    auto stack = wrap(step.watch(nn::Sequential(Mlp(6, 0.2), Mlp(6, 0.2))), policy::all());
    const auto a = stack->forward(step.leaf(torch::randn({4, 6})));
    const auto b = stack->forward(step.leaf(torch::randn({4, 6})));
    step.backward(b, a);
  });
}

}  // namespace
