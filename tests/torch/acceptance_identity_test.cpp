// SPDX-License-Identifier: BSD-3-Clause
// K17: a wrapped model keeps its names, its archives and its tree.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include <refrain/checkpoint_sequential.hpp>

#include <sstream>
#include <string>
#include <vector>

namespace {

using torch::Tensor;

class Identity : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, Identity, support::kBothRoutes, support::route_name);

/// The same model with and without: only the type of `block` differs.
template <class Block>
struct OneBlockImpl : torch::nn::Module {
  explicit OneBlockImpl(Block wrapped) : block(register_module("block", std::move(wrapped))) {}
  Tensor forward(Tensor x) { return block(head(x)); }
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 8));
  Block block;
};

using PlainNet = OneBlockImpl<support::Mlp>;
using QuietNet = OneBlockImpl<refrain::Checkpoint<support::Mlp>>;

template <class Items>
std::vector<std::string> keys_of(const Items& items) {
  std::vector<std::string> names;
  for (const auto& item : items) names.push_back(item.key());
  return names;
}

TEST_P(Identity, ParametersKeepTheirNames) {
  auto plain = std::make_shared<PlainNet>(support::Mlp(8));
  auto wrapped = std::make_shared<QuietNet>(quiet(support::Mlp(8)));
  EXPECT_EQ(keys_of(wrapped->named_parameters()), keys_of(plain->named_parameters()));
  EXPECT_TRUE(wrapped->named_parameters().contains("block.fc1.weight"));
}

template <class From, class To>
void expect_loads_into(std::shared_ptr<From> from, std::shared_ptr<To> to) {
  std::stringstream file;
  torch::save(from, file);
  torch::load(to, file);
  const auto x = torch::randn({2, 8});
  EXPECT_TRUE(torch::equal(from->forward(x), to->forward(x)));
}

TEST_P(Identity, APlainArchiveLoadsIntoAWrappedModelAndBack) {
  auto plain = std::make_shared<PlainNet>(support::Mlp(8));
  auto wrapped = std::make_shared<QuietNet>(quiet(support::Mlp(8)));
  expect_loads_into(plain, wrapped);
  expect_loads_into(wrapped, std::make_shared<PlainNet>(support::Mlp(8)));
}

TEST_P(Identity, BuffersKeepTheirNames) {
  auto norm = quiet(torch::nn::BatchNorm1d(4));
  EXPECT_EQ(keys_of(norm->named_buffers()), keys_of(torch::nn::BatchNorm1d(4)->named_buffers()));
}

TEST_P(Identity, TrainingModeAndConversionReachTheInside) {
  auto layer = quiet(support::Mlp(8, 0.5));
  layer->eval();
  EXPECT_FALSE(layer->inner()->dropout->is_training());
  layer->to(torch::kDouble);
  EXPECT_EQ(layer->inner()->fc1->weight.scalar_type(), torch::kDouble);
  layer->zero_grad();
  EXPECT_EQ(layer(torch::randn({2, 8}, torch::kDouble)).scalar_type(), torch::kDouble);
}

TEST_P(Identity, ACopyIsAHandleAndACloneIsNot) {
  auto layer = quiet(torch::nn::Linear(4, 4));
  auto handle = layer;
  EXPECT_EQ(handle->inner(), layer->inner());
  auto twin = std::dynamic_pointer_cast<decltype(layer)::ContainedType>(layer->clone());
  ASSERT_TRUE(twin);
  EXPECT_NE(twin->inner(), layer->inner());
  EXPECT_TRUE(torch::equal(twin->inner()->weight, layer->inner()->weight));
}

TEST_P(Identity, AWrappedBlockSitsInASequential) {
  auto layers = torch::nn::Sequential(torch::nn::Linear(8, 8), quiet(support::Mlp(8)),
                                      quiet(support::Mlp(8)));
  layers->forward(torch::randn({2, 8})).sum().backward();
  for (const auto& p : layers->parameters()) EXPECT_TRUE(p.grad().defined());
}

TEST_P(Identity, ASequentialIsWrappedWithoutTouchingIt) {
  auto layers = torch::nn::Sequential(torch::nn::Linear(8, 8), support::Mlp(8));
  const auto before = keys_of(layers->named_modules());
  auto stack = refrain::checkpoint(layers, refrain::policy::all(), options());
  EXPECT_EQ(keys_of(layers->named_modules()), before);
  EXPECT_EQ(keys_of(stack->named_parameters()), keys_of(layers->named_parameters()));
  EXPECT_TRUE(torch::equal(stack(torch::ones({1, 8})), layers->forward(torch::ones({1, 8}))));
}

}  // namespace
