// SPDX-License-Identifier: BSD-3-Clause
#include "support/modules.hpp"
#include "support/seeded.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/checkpoint_sequential.hpp>

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace {

using support::Mlp;
using torch::Tensor;
namespace nn = torch::nn;
namespace policy = refrain::policy;

class Clone : public support::Seeded {};
class Conversion : public support::Seeded {};
class Modes : public support::Seeded {};

/// A block that can be cloned, as LibTorch asks for it.
struct NormedImpl : nn::Cloneable<NormedImpl> {
  explicit NormedImpl(std::int64_t features = 4) : width(features) { reset(); }
  void reset() override {
    norm = register_module("norm", nn::BatchNorm1d(width));
    fc = register_module("fc", nn::Linear(width, width));
  }
  Tensor forward(Tensor x) { return fc(norm(x)).tanh(); }
  std::int64_t width;
  nn::BatchNorm1d norm = nullptr;
  nn::Linear fc = nullptr;
};
TORCH_MODULE(Normed);

struct NormedNetImpl : nn::Cloneable<NormedNetImpl> {
  NormedNetImpl() { reset(); }
  void reset() override {
    head = register_module("head", nn::Linear(4, 4));
    block = register_module("block", refrain::checkpoint<Normed>(4));
  }
  Tensor forward(Tensor x) { return block(head(x)); }
  nn::Linear head = nullptr;
  refrain::Checkpoint<Normed> block = nullptr;
};
TORCH_MODULE(NormedNet);

template <class Holder>
Holder clone_of(const Holder& module) {
  return Holder(std::dynamic_pointer_cast<typename Holder::ContainedType>(module->clone()));
}

/// The copy computes the same, and training it leaves the original alone.
template <class Holder>
void expect_independent(Holder original, Holder copy) {
  const auto x = torch::randn({5, 4});
  original->eval();
  copy->eval();
  const Tensor before = original(x).detach().clone();
  EXPECT_TRUE(torch::equal(copy(x), before));
  torch::optim::SGD optimizer(copy->parameters(), 0.5);
  copy->train();
  copy(x).sum().backward();
  optimizer.step();
  copy->eval();
  EXPECT_FALSE(torch::equal(copy(x), before)) << "the copy's call does not use the copy's tensors";
  EXPECT_TRUE(torch::equal(original(x), before)) << "the original moved with the copy";
  for (const auto& parameter : original->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST_F(Clone, OfAWrappedBlockIsIndependent) {
  auto block = refrain::checkpoint(Normed(4));
  expect_independent(block, clone_of(block));
}

TEST_F(Clone, OfAModelThatHoldsAWrappedBlockIsIndependent) {
  NormedNet net;
  expect_independent(net, clone_of(net));
}

TEST_F(Clone, OfASequentialThatHoldsAWrappedBlockIsIndependent) {
  nn::Sequential layers(nn::Linear(4, 4), refrain::checkpoint(Normed(4)));
  auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(layers->clone());
  const auto x = torch::randn({5, 4});
  EXPECT_TRUE(torch::equal(copy->forward(x), layers->forward(x)));
  copy->forward(x).sum().backward();
  for (const auto& parameter : layers->parameters()) EXPECT_FALSE(parameter.grad().defined());
  for (const auto& parameter : copy->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST_F(Clone, OfAWrappedSequentialIsIndependent) {
  auto stack = refrain::checkpoint(nn::Sequential(Normed(4), Normed(4)), policy::all());
  expect_independent(stack, clone_of(stack));
}

TEST_F(Clone, IsARegionToo) {
  struct CountedImpl : nn::Cloneable<CountedImpl> {
    CountedImpl() { reset(); }
    void reset() override { fc = register_module("fc", nn::Linear(4, 4)); }
    Tensor forward(Tensor x) {
      ++*runs;
      return fc(x).sin();
    }
    nn::Linear fc = nullptr;
    std::shared_ptr<int> runs = std::make_shared<int>(0);
  };
  using Counted = nn::ModuleHolder<CountedImpl>;
  auto copy = clone_of(refrain::checkpoint(Counted()));
  copy(torch::randn({2, 4})).sum().backward();
  EXPECT_EQ(*copy->inner()->runs, 2);
}

TEST_F(Conversion, ReachesTheWrappedBlockAndItsBuffers) {
  NormedNet net;
  net->to(torch::kDouble);
  EXPECT_EQ(net->block->inner()->fc->weight.scalar_type(), torch::kDouble);
  EXPECT_EQ(net->block->inner()->norm->running_mean.scalar_type(), torch::kDouble);
  const auto y = net(torch::randn({3, 4}, torch::kDouble));
  y.sum().backward();
  EXPECT_EQ(net->block->inner()->fc->weight.grad().scalar_type(), torch::kDouble);
}

TEST_F(Conversion, KeepsTheParametersThatAnOptimizerHolds) {
  auto block = refrain::checkpoint(Normed(4));
  const auto held = block->parameters();
  block->to(torch::kDouble);
  for (const auto& parameter : held) EXPECT_EQ(parameter.scalar_type(), torch::kDouble);
}

TEST_F(Modes, TrainAndEvalReachTheWrappedBlock) {
  NormedNet net;
  for (const bool training : {false, true, false}) {
    net->train(training);
    EXPECT_EQ(net->block->is_training(), training);
    EXPECT_EQ(net->block->inner()->is_training(), training);
    EXPECT_EQ(net->block->inner()->norm->is_training(), training);
  }
}

TEST_F(Modes, OfASequentialReachItsModulesThroughTheStack) {
  nn::Sequential layers(nn::Dropout(0.5), Normed(4));
  auto stack = refrain::checkpoint(layers, policy::all());
  stack->eval();
  EXPECT_FALSE(layers[0]->is_training());
  EXPECT_TRUE(torch::equal(stack(torch::ones({2, 4})), stack(torch::ones({2, 4}))));
}

TEST_F(Modes, ZeroGradReachesTheWrappedBlock) {
  NormedNet net;
  net(torch::randn({3, 4})).sum().backward();
  net->zero_grad();
  for (const auto& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST_F(Modes, ApplyVisitsEachLayerOnceUnderItsOwnName) {
  NormedNet net;
  std::vector<std::string> linears;
  net->apply([&](const std::string& name, nn::Module& module) {
    if (module.as<nn::Linear>() != nullptr) linears.push_back(name);
  });
  EXPECT_EQ(linears, (std::vector<std::string>{"head", "block.fc"}));
}

TEST_F(Modes, ApplyInitialisesWhatTheRegionUses) {
  auto block = refrain::checkpoint(Normed(4));
  block->apply([](nn::Module& module) {
    const torch::NoGradGuard no_grad;
    if (auto* linear = module.as<nn::LinearImpl>()) linear->weight.zero_();
  });
  EXPECT_TRUE(torch::equal(block->inner()->fc->weight, torch::zeros({4, 4})));
}

}  // namespace
