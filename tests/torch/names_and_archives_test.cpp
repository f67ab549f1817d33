// SPDX-License-Identifier: BSD-3-Clause
#include "support/modules.hpp"
#include "support/seeded.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/checkpoint_sequential.hpp>
#include <refrain/profiler.hpp>

#include <torch/torch.h>

#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace policy = refrain::policy;

class Names : public support::Seeded {};
class Archives : public support::Seeded {};

template <class Items>
std::vector<std::string> keys(const Items& items) {
  std::vector<std::string> names;
  for (const auto& item : items) names.push_back(item.key());
  return names;
}

/// A block with parameters of its own, a buffer, and children two levels deep.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t width = 4)
      : scale(register_parameter("scale", torch::ones(width))),
        steps(register_buffer("steps", torch::zeros(1))),
        norm(register_module("norm", nn::BatchNorm1d(width))),
        mlp(register_module("mlp", support::Mlp(width))) {}
  Tensor forward(Tensor x) { return mlp(norm(x)) * scale; }
  Tensor scale, steps;
  nn::BatchNorm1d norm;
  support::Mlp mlp;
};
TORCH_MODULE(Block);

TEST_F(Names, OfParametersAndBuffersAreTheBlocksOwnAtEveryDepth) {
  Block block(4);
  auto quiet = refrain::checkpoint(Block(4));
  EXPECT_EQ(keys(quiet->named_parameters()), keys(block->named_parameters()));
  EXPECT_EQ(keys(quiet->named_buffers()), keys(block->named_buffers()));
  EXPECT_EQ(keys(quiet->named_parameters(/*recurse=*/false)), std::vector<std::string>{"scale"});
}

TEST_F(Names, SurviveARegionInsideARegion) {
  auto quiet = refrain::checkpoint(refrain::checkpoint(Block(4)));
  EXPECT_EQ(keys(quiet->named_parameters()), keys(Block(4)->named_parameters()));
}

TEST_F(Names, InAModelDoNotTellWhichBlocksAreWrapped) {
  const auto plain = nn::Sequential(Block(4), nn::Linear(4, 4), Block(4));
  const auto mixed = nn::Sequential(refrain::checkpoint(Block(4)), nn::Linear(4, 4), Block(4));
  EXPECT_EQ(keys(mixed->named_parameters()), keys(plain->named_parameters()));
  EXPECT_EQ(keys(mixed->named_buffers()), keys(plain->named_buffers()));
}

/// A module whose members hide LibTorch's own functions.
struct HidingImpl : nn::Module {
  Tensor forward(const Tensor& x) { return (linear(x) * load).sin() + name + train + children; }
  nn::Linear linear = register_module("linear", nn::Linear(3, 3));
  Tensor load = register_buffer("load", torch::ones({3}));
  double name = 1;
  int train = 2;
  int children = 3;
  std::int64_t save = 4;
};
TORCH_MODULE(Hiding);

TEST_F(Names, MayBeThoseOfLibTorchsOwnFunctions) {
  auto block = refrain::checkpoint(Hiding());
  block->to(torch::kDouble);
  block->eval();
  EXPECT_EQ(keys(block->named_buffers()), std::vector<std::string>{"load"});
  block(torch::randn({2, 3}, torch::kDouble)).sum().backward();
  EXPECT_TRUE(block->parameters()[0].grad().defined());
  const auto signature = refrain::signature(std::vector<Hiding>(1), torch::randn({2, 3}));
  EXPECT_TRUE(signature.layers[0].type.ends_with("HidingImpl"));
}

TEST_F(Names, EachParameterIsListedOnce) {
  auto quiet = refrain::checkpoint(Block(4));
  std::set<void*> seen;
  for (const auto& parameter : quiet->parameters()) {
    EXPECT_TRUE(seen.insert(parameter.unsafeGetTensorImpl()).second);
  }
  EXPECT_EQ(seen.size(), Block(4)->parameters().size());
}

TEST_F(Names, WrappingSharesTheBlocksTensors) {
  Block block(4);
  auto quiet = refrain::checkpoint(block);
  EXPECT_EQ(quiet->inner(), block.ptr());
  EXPECT_TRUE(quiet->named_parameters()["scale"].is_same(block->scale));
  EXPECT_TRUE(quiet->named_buffers()["norm.running_mean"].is_same(block->norm->running_mean));
}

TEST_F(Names, OfAParameterMadeInTheFirstForwardAreSeen) {
  struct LazyImpl : nn::Module {
    Tensor forward(Tensor x) {
      if (!scale.defined()) scale = register_parameter("scale", torch::ones(x.size(-1)));
      return x.sin() * scale;
    }
    Tensor scale;
  };
  auto quiet = refrain::checkpoint(nn::ModuleHolder<LazyImpl>());
  quiet(torch::randn({2, 4})).sum().backward();
  ASSERT_TRUE(quiet->named_parameters().contains("scale"));
  EXPECT_TRUE(quiet->named_parameters()["scale"].grad().defined());
}

/// Trains a step, so that every parameter and buffer has moved; then what is loaded must agree.
template <class From, class To>
void expect_loads(From from, To to) {
  torch::optim::SGD optimizer(from->parameters(), 0.1);
  from(torch::randn({6, 4})).sum().backward();
  optimizer.step();
  std::stringstream file;
  torch::save(from, file);
  torch::load(to, file);
  from->eval();
  to->eval();
  const auto x = torch::randn({3, 4});
  EXPECT_TRUE(torch::equal(from(x), to(x)));
}

TEST_F(Archives, OfAPlainBlockLoadIntoAWrappedOne) {
  expect_loads(Block(4), refrain::checkpoint(Block(4)));
}

TEST_F(Archives, OfAWrappedBlockLoadIntoAPlainOne) {
  expect_loads(refrain::checkpoint(Block(4)), Block(4));
}

TEST_F(Archives, OfAWrappedSequentialLoadIntoAPlainOneAndBack) {
  const auto wrapped = [] {
    return refrain::checkpoint(nn::Sequential(Block(4), Block(4)), policy::all());
  };
  std::stringstream file;
  auto from = wrapped();
  torch::save(from, file);
  nn::Sequential plain(Block(4), Block(4));
  torch::load(plain, file);
  std::stringstream back;
  torch::save(plain, back);
  auto to = wrapped();
  torch::load(to, back);
  const auto x = torch::randn({3, 4});
  EXPECT_TRUE(torch::equal(from(x), to(x)));
}

TEST_F(Archives, OfAnOptimizerGoOnFromPlainToWrapped) {
  Block plain(4);
  auto quiet = refrain::checkpoint(Block(4));
  torch::optim::Adam before(plain->parameters(), 0.1);
  torch::optim::Adam after(quiet->parameters(), 0.1);
  plain(torch::randn({6, 4})).sum().backward();
  before.step();
  std::stringstream file;
  torch::save(before, file);
  torch::load(after, file);
  EXPECT_EQ(after.state().size(), before.state().size());
}

/// What is registered, replaced or removed once a module is wrapped.
struct GrowingImpl : nn::Module {
  Tensor forward(Tensor x) {
    if (!scale.defined()) {
      scale = register_parameter("scale", torch::ones({4}));
      seen = register_buffer("seen", torch::zeros({1}));
    }
    x = head(x) * scale;
    return extra.is_empty() ? x : extra(x);
  }
  nn::Linear head = register_module("head", nn::Linear(4, 4));
  nn::Linear extra = nullptr;
  Tensor scale, seen;
};
TORCH_MODULE(Growing);

struct ParentImpl : nn::Module {
  refrain::Checkpoint<Growing> block = register_module("block", refrain::checkpoint(Growing()));
};

const std::vector<std::string> kGrown{"block.scale", "block.head.weight", "block.head.bias"};

TEST_F(Names, OfWhatAPlainCallMakesAreSeenOutside) {
  const auto x = torch::randn({2, 4});
  for (const bool scoped : {true, false}) {
    ParentImpl parent;
    if (scoped) {
      const refrain::PlainScope plain;
      (void)parent.block(x);
    } else {
      parent.block->set_enabled(false);
      (void)parent.block(x);
    }
    EXPECT_EQ(keys(parent.named_parameters()), kGrown);
    EXPECT_EQ(keys(parent.named_buffers()), std::vector<std::string>{"block.seen"});
  }
  ParentImpl parent;
  {
    const torch::NoGradGuard no_grad;
    (void)parent.block(x);
  }
  EXPECT_EQ(keys(parent.named_parameters()), kGrown);
}

TEST_F(Names, OfAnAdapterAreSeenOnceItIsAskedForOrUsed) {
  const auto grow = [](ParentImpl& parent) {
    auto& block = *parent.block->inner();
    block.extra = block.register_module("extra", nn::Linear(4, 4));
  };
  const std::vector<std::string> before{"block.head.weight", "block.head.bias"};
  const std::vector<std::string> after{"block.head.weight", "block.head.bias", "block.extra.weight",
                                       "block.extra.bias"};
  ParentImpl refreshed;
  grow(refreshed);
  EXPECT_EQ(keys(refreshed.named_parameters()), before);
  EXPECT_TRUE(refreshed.block->refresh());
  EXPECT_FALSE(refreshed.block->refresh());
  EXPECT_EQ(keys(refreshed.named_parameters()), after);

  ParentImpl trained;
  grow(trained);
  trained.train();
  EXPECT_EQ(keys(trained.named_parameters()), after);

  ParentImpl called;
  grow(called);
  testing::internal::CaptureStderr();
  (void)called.block(torch::randn({2, 4}));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("optimizer"), std::string::npos);
  EXPECT_EQ(called.parameters().size(), 5);
}

TEST_F(Names, OfAReplacedModuleAreTheNewOnes) {
  ParentImpl parent;
  const nn::Linear head(4, 4);
  parent.block->inner()->head = head;
  parent.block->replace_module("head", head.ptr());
  EXPECT_TRUE(parent.parameters()[0].is_same(head->weight));
  EXPECT_TRUE(parent.block->inner()->named_children()["head"] == head.ptr());
  parent.block->unregister_module("head");
  EXPECT_TRUE(parent.parameters().empty());
}

TEST_F(Names, OfWhatIsRegisteredOnTheWrapperAreTheModulesOwn) {
  ParentImpl parent;
  parent.block->register_module("late", nn::Linear(nn::LinearOptions(4, 2).bias(false)));
  parent.block->register_parameter("gain", torch::ones({3}));
  parent.block->register_buffer("count", torch::zeros({1}));
  EXPECT_EQ(keys(parent.named_parameters()),
            (std::vector<std::string>{"block.gain", "block.head.weight", "block.head.bias",
                                      "block.late.weight"}));
  parent.to(torch::kDouble);
  for (const auto& parameter : parent.parameters())
    EXPECT_EQ(parameter.scalar_type(), torch::kDouble);
  EXPECT_EQ(keys(parent.block->inner()->named_parameters()).size(), 4);
  EXPECT_EQ(keys(parent.named_buffers()), std::vector<std::string>{"block.count"});
}

TEST_F(Names, OfALayerPushedLaterAreSeenInASequential) {
  nn::Sequential layers(nn::Linear(4, 4), nn::Tanh());
  auto stack = refrain::checkpoint(layers, refrain::policy::all());
  layers->push_back(nn::Linear(4, 4));
  stack->refresh();
  EXPECT_EQ(stack->parameters().size(), 4);
  EXPECT_EQ(stack(torch::randn({2, 4})).sizes(), (std::vector<std::int64_t>{2, 4}));
}

}  // namespace
