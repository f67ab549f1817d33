// SPDX-License-Identifier: BSD-3-Clause
// What the linter finds in models, and that its advice is true.
#include "support/modules.hpp"
#include "support/routes.hpp"
#include "support/seeded.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/lint.hpp>
#include <refrain/memory.hpp>
#include <refrain/offload.hpp>
#include <refrain/tier/arena.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace nn = torch::nn;
using refrain::Bytes;
using refrain::CheckpointOptions;
using refrain::Finding;
using refrain::Rule;
using refrain::Severity;
using testing::HasSubstr;
using torch::Tensor;

/// Checkpointed blocks, then a head.
struct LintedImpl : nn::Module {
  explicit LintedImpl(int count, std::int64_t classes = 4, double drop = 0.1)
      : head(register_module("head", nn::Linear(32, classes))) {
    for (int i = 0; i < count; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i),
                                       refrain::checkpoint(support::Mlp(32, drop))));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return torch::log_softmax(head(x), -1);
  }
  nn::Linear head;
  std::vector<refrain::Checkpoint<support::Mlp>> blocks;
};
TORCH_MODULE(Linted);

class Lint : public support::Seeded {
 protected:
  Tensor x = torch::randn({64, 32});

  static Finding find(const std::vector<Finding>& findings, Rule rule) {
    const auto found = std::find_if(findings.begin(), findings.end(),
                                    [rule](const Finding& one) { return one.rule == rule; });
    return found == findings.end() ? Finding{} : *found;
  }
  static bool has(const std::vector<Finding>& findings, Rule rule) {
    return std::any_of(findings.begin(), findings.end(),
                       [rule](const Finding& one) { return one.rule == rule; });
  }
  template <class Function>
  static auto region(Function function, CheckpointOptions options = {}) {
    return refrain::checkpoint(std::move(function), options.name("r"));
  }
};

TEST_F(Lint, LeavesTheModelAsItWas) {
  auto net = Linted(3);
  net->blocks[0]->inner()->runs = 0;
  net(x).sum().backward();
  const auto gradient = net->head->weight.grad().clone();
  const auto generator = at::globalContext().defaultGenerator(at::kCPU).get_state();
  (void)refrain::lint(net, x);
  EXPECT_TRUE(torch::equal(net->head->weight.grad(), gradient));
  EXPECT_TRUE(torch::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), generator));
  EXPECT_EQ(refrain::regions(*net)[1].name, "block1");
}

TEST_F(Lint, NamesTheLastBlockAndItsAdviceIsTrue) {
  auto net = Linted(4);
  const auto findings = refrain::lint(net, x);
  const Finding finding = find(findings, Rule::OnlyCosts);
  EXPECT_EQ(finding.region, "block3");
  EXPECT_EQ(finding.severity, Severity::Warning);
  EXPECT_TRUE(any_warning(findings));
  const auto peak = [&] {
    net->zero_grad();
    refrain::reset_peak();
    net(x).sum().backward();
    return refrain::memory().peak;
  };
  net(x).sum().backward();
  const Bytes before = peak();
  net->blocks[3]->set_enabled(false);
  EXPECT_LE(peak(), before);
  EXPECT_FALSE(has(refrain::lint(net, x), Rule::OnlyCosts));
}

TEST_F(Lint, NamesARegionAroundFusedAttention) {
  const auto qkv = torch::randn({3, 2, 2, 64, 8}).requires_grad_();
  auto around = region([](const Tensor& q, const Tensor& k, const Tensor& v) {
    return at::scaled_dot_product_attention(q, k, v);
  });
  const auto lone = [&](const Tensor& t) { return around(t[0], t[1], t[2]).sin(); };
  const auto findings = refrain::lint(lone, qkv);
  const bool said = find(findings, Rule::SavesLittle).what.find("attention") != std::string::npos ||
                    has(findings, Rule::Attention);
  EXPECT_TRUE(said) << to_string(findings);
}

TEST_F(Lint, NamesARegionThatSavesNothingBecauseItIsFrozen) {
  auto frozen = nn::Linear(32, 32);
  for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  auto front = refrain::checkpoint(frozen, CheckpointOptions().name("front"));
  auto head = nn::Linear(32, 4);
  const auto findings = refrain::lint([&](const Tensor& t) { return head(front(t).sin()); }, x);
  EXPECT_EQ(find(findings, Rule::NoGradient).region, "front");
}

TEST_F(Lint, NamesARegionThatSavesOnlyItsInputAndParameters) {
  auto linear = region([layer = nn::Linear(32, 32)](const Tensor& t) mutable { return layer(t); });
  const auto findings = refrain::lint(linear, x);
  EXPECT_THAT(find(findings, Rule::SavesLittle).what, HasSubstr("its inputs and parameters"));
}

TEST_F(Lint, NamesTensorsThatAClosureHoldsAnyway) {
  std::vector<Tensor> cache;
  const auto findings = refrain::lint(region([&](const Tensor& t) {
                                        const auto twice = t.mul(2);
                                        if (!refrain::replaying()) cache.push_back(twice);
                                        return twice.sin().sum();
                                      }),
                                      x.clone().requires_grad_());
  EXPECT_THAT(find(findings, Rule::SavesLittle).what, HasSubstr("held anyway, by "));
}

TEST_F(Lint, NamesAnOutputThatIsKeptTwice) {
  auto a = refrain::checkpoint(support::Mlp(32), CheckpointOptions().name("a"));
  auto b = refrain::checkpoint(support::Mlp(32), CheckpointOptions().name("b"));
  auto norm = nn::LayerNorm(nn::LayerNormOptions({32}));
  const auto findings = refrain::lint([&](const Tensor& t) { return b(norm(a(t))).square(); }, x);
  EXPECT_EQ(find(findings, Rule::OutputKeptTwice).region, "a");
  const auto moved = refrain::lint([&](const Tensor& t) { return b(a(norm(t))).square(); }, x);
  EXPECT_FALSE(has(moved, Rule::OutputKeptTwice)) << to_string(moved);
}

TEST_F(Lint, NamesSourcesOfRandomNumbersThatAreNotReplayed) {
  const auto w = torch::randn({32, 32}).requires_grad_();
  std::mt19937 engine(1);
  auto private_engine = region([&](const Tensor& t) {
    return (t.mm(w) * std::uniform_real_distribution<double>()(engine)).sin().exp();
  });
  const Finding diverges = find(refrain::lint(private_engine, x), Rule::Diverges);
  EXPECT_EQ(diverges.severity, Severity::Error);
  EXPECT_EQ(diverges.region, "r");
  EXPECT_THAT(diverges.what, HasSubstr("aten::mul"));

  auto generator = at::detail::createCPUGenerator();
  const auto draws = [&](const Tensor& t) {
    return (t.mm(w) * torch::rand({32}, generator)).sin().exp();
  };
  const Finding unknown = find(refrain::lint(region(draws), x), Rule::RandomNotReplayed);
  EXPECT_EQ(unknown.severity, Severity::Error);
  EXPECT_THAT(unknown.cure, HasSubstr("generators("));
  auto known = region(draws, CheckpointOptions().generators({generator}));
  EXPECT_FALSE(has(refrain::lint(known, x), Rule::RandomNotReplayed));

  auto ignores = region([&](const Tensor& t) { return torch::dropout(t.mm(w), 0.5, true).exp(); },
                        CheckpointOptions().rng(refrain::Rng::Ignore));
  EXPECT_TRUE(has(refrain::lint(ignores, x), Rule::Diverges));
}

TEST_F(Lint, NamesABufferThatAReplayChanges) {
  struct CountsImpl : nn::Module {
    Tensor forward(const Tensor& t) {
      ++*count.data_ptr<float>();  // where nobody sees it
      return fc(t).sin().exp();
    }
    nn::Linear fc = register_module("fc", nn::Linear(32, 32));
    Tensor count = register_buffer("count", torch::zeros({1}));
  };
  struct ModelImpl : nn::Module {
    Tensor forward(const Tensor& t) { return counts(t).sin(); }
    refrain::Checkpoint<nn::ModuleHolder<CountsImpl>> counts = register_module(
        "counts",
        refrain::checkpoint(nn::ModuleHolder<CountsImpl>(std::make_shared<CountsImpl>())));
  };
  ModelImpl model;
  const Finding finding = find(refrain::lint(model, x), Rule::BufferChanged);
  EXPECT_EQ(finding.severity, Severity::Error);
  EXPECT_THAT(finding.what, HasSubstr("counts.count"));
}

TEST_F(Lint, NamesRegionsThatDidNotRunAsSuch) {
  auto net = Linted(3);
  net->blocks[0]->set_enabled(false);
  net->blocks[1]->eval();
  const auto findings = refrain::lint(net, x);
  EXPECT_EQ(find(findings, Rule::NotRun).region, "block0");
  EXPECT_EQ(find(findings, Rule::NotRun).severity, Severity::Note);
  EXPECT_EQ(find(findings, Rule::InEvalMode).region, "block1");
  struct NoGradImpl : nn::Module {
    Tensor forward(const Tensor& t) {
      Tensor y;
      {
        const torch::NoGradGuard no_grad;
        y = block(t);
      }
      return head(y);
    }
    refrain::Checkpoint<support::Mlp> block =
        register_module("block", refrain::checkpoint(support::Mlp(32)));
    nn::Linear head = register_module("head", nn::Linear(32, 2));
  };
  NoGradImpl model;
  const Finding finding = find(refrain::lint(model, x), Rule::NotRun);
  EXPECT_EQ(finding.region, "block");
  EXPECT_EQ(finding.severity, Severity::Warning);
}

TEST_F(Lint, NamesANestedRegionThatOnlyCosts) {
  auto inner = refrain::checkpoint([](const Tensor& t) { return t.sin().cos(); },
                                   CheckpointOptions().name("inner"));
  std::vector<support::Mlp> blocks;
  for (int i = 0; i < 3; ++i) blocks.emplace_back(32);
  auto outer = refrain::checkpoint([&](const Tensor& t) { return blocks[1](blocks[0](inner(t))); },
                                   CheckpointOptions().name("outer"));
  auto last = refrain::checkpoint(
      [&](const Tensor& t) { return blocks[2](t).repeat({1, 20}).sin().exp().sum(); },
      CheckpointOptions().name("last"));
  const auto findings =
      refrain::lint([&](const Tensor& t) { return last(outer(t)); }, x.clone().requires_grad_());
  const auto nested = std::find_if(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.rule == Rule::OnlyCosts && finding.region == "inner";
  });
  ASSERT_NE(nested, findings.end()) << to_string(findings);
  EXPECT_THAT(nested->cure, HasSubstr("the region around it"));
}

TEST_F(Lint, NamesAPeakOutsideAllRegions) {
  auto net = Linted(3, /*classes=*/2000);
  const Finding finding = find(refrain::lint(net, x), Rule::PeakOutside);
  EXPECT_THAT(finding.cure, HasSubstr("the head"));
}

TEST_F(Lint, NamesACutThatIsFarFromTheBestAndItsAdviceIsTrue) {
  struct Case {
    std::function<Tensor(Tensor)> layer;
    int layers;
    int every;
  };
  const auto w = torch::randn({64, 64}).requires_grad_();
  const std::vector<Case> cases{
      {[](const Tensor& t) { return t.sin().cos(); }, 32, 1},
      {[w](const Tensor& t) { return t.mm(w); }, 64, 2},
      {[w](const Tensor& t) { return t.mm(w).tanh(); }, 64, 2},
      {[w](const Tensor& t) { return t.mm(w).sin().exp(); }, 24, 8},
  };
  for (const Case& one : cases) {
    const std::vector<std::function<Tensor(Tensor)>> layers(static_cast<std::size_t>(one.layers),
                                                            one.layer);
    const auto input = torch::randn({256, 64}).requires_grad_();
    const auto peak = [&](const refrain::policy::AnyPolicy& policy) {
      auto chain = refrain::checkpoint(layers, policy);
      chain(input).sum().backward();
      input.mutable_grad() = Tensor();
      refrain::reset_peak();
      const auto before = refrain::memory().live;
      chain(input).sum().backward();
      input.mutable_grad() = Tensor();
      return refrain::memory().peak - before;
    };
    auto chain = refrain::checkpoint(layers, refrain::policy::every(one.every));
    const Finding finding = find(refrain::lint(chain, input), Rule::FarFromBestCut);
    const std::size_t place = finding.cure.find("segments(");
    ASSERT_NE(place, std::string::npos) << finding.what << finding.cure;
    const int best = std::stoi(finding.cure.substr(place + 9));
    const Bytes gained =
        peak(refrain::policy::every(one.every)) - peak(refrain::policy::segments(best));
    EXPECT_GT(3 * gained.count(), 2 * finding.bytes.count()) << "about what it said";
    EXPECT_LT(2 * gained.count(), 3 * finding.bytes.count()) << "about what it said";
    auto better = refrain::checkpoint(layers, refrain::policy::segments(best));
    EXPECT_FALSE(has(refrain::lint(better, input), Rule::FarFromBestCut));
  }
}

TEST_F(Lint, LeavesTheGraphOfItsInputsAlone) {
  auto stem = nn::Linear(32, 32);
  auto block = refrain::checkpoint(support::Mlp(32));
  const Tensor h = stem(x).sin();
  EXPECT_FALSE(has(refrain::lint(block, h), Rule::StepFails));
  block(h).sum().backward();
  EXPECT_TRUE(stem->weight.grad().defined());
}

TEST_F(Lint, BringsBackWhatOneCallWritesAndAnotherDoesNot) {
  struct AveragesImpl : nn::Module {
    Tensor forward(const Tensor& t) {
      if (at::GradMode::is_enabled() && ++calls > 1) mean.mul_(0.5).add_(t.detach().mean(), 0.5);
      block(t).sum().backward();
      return block(t);
    }
    int calls = 0;
    Tensor mean = register_buffer("mean", torch::ones({1}));
    refrain::Checkpoint<support::Mlp> block =
        register_module("block", refrain::checkpoint(support::Mlp(32)));
  };
  AveragesImpl model;
  (void)refrain::lint(model, x);
  EXPECT_EQ(model.mean.item<float>(), 1);
  for (const auto& parameter : model.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST_F(Lint, ServesModelsThatTakeGradientsInForward) {
  const auto w = torch::randn({32, 32}).requires_grad_();
  auto energy = region([&](const Tensor& t) { return t.mm(w).sin().exp().sum(); });
  const auto forces = [&](const Tensor& t) {
    const Tensor position = t.detach().requires_grad_();
    return torch::autograd::grad({energy(position)}, {position}, {}, true, true)[0];
  };
  const auto findings = refrain::lint(forces, x);
  EXPECT_FALSE(has(findings, Rule::StepFails)) << to_string(findings);
  EXPECT_FALSE(has(findings, Rule::Diverges)) << to_string(findings);
}

TEST_F(Lint, TellsFailuresOfTheStepFromDivergence) {
  const auto fails = [&](const std::function<void()>& fail) {
    auto plain = region([](const Tensor& t) { return t.sin().exp(); });
    bool first = true;
    const auto step = [&](const Tensor& t) {
      if (!std::exchange(first, false)) fail();
      return plain(t);
    };
    return find(refrain::lint(step, x.clone().requires_grad_()), Rule::StepFails);
  };
  const Finding newline = fails([] { throw std::runtime_error("out of cheese\n"); });
  EXPECT_THAT(newline.what, HasSubstr("out of cheese"));
  const Finding quoted = fails([] { TORCH_CHECK(false, "use `foo` with `bar`\nsecond line."); });
  EXPECT_EQ(quoted.region, "");
  EXPECT_THAT(quoted.what, HasSubstr("use `foo`"));
}

TEST_F(Lint, SaysOfARegionThatSavesNothingWhyThatIs) {
  auto adds = region([](const Tensor& t) { return (t * 2 + 1).reshape({-1}); });
  const auto findings = refrain::lint(adds, x.clone().requires_grad_());
  EXPECT_FALSE(has(findings, Rule::NoGradient)) << "one flows";
  EXPECT_THAT(find(findings, Rule::SavesLittle).what, HasSubstr("its operators save nothing"));
}

TEST_F(Lint, SaysNothingOfTwoBranchesSideBySide) {
  auto query = refrain::checkpoint(support::Mlp(32), CheckpointOptions().name("query"));
  auto key = refrain::checkpoint(support::Mlp(32), CheckpointOptions().name("key"));
  const auto findings =
      refrain::lint([&](const Tensor& t) { return (query(t * 2) * key(t * 3)).sum(); }, x);
  EXPECT_FALSE(has(findings, Rule::OutputKeptTwice)) << to_string(findings);
}

TEST_F(Lint, LeavesUncheckedRegionsUnchecked) {
  const auto w = torch::randn({32, 32}).requires_grad_();
  auto ignores = region([&](const Tensor& t) { return torch::dropout(t.mm(w), 0.5, true).exp(); },
                        CheckpointOptions().rng(refrain::Rng::Ignore).check(refrain::Check::None));
  const auto findings = refrain::lint(ignores, x);
  EXPECT_FALSE(has(findings, Rule::Diverges)) << to_string(findings);
  EXPECT_EQ(find(findings, Rule::RandomNotReplayed).severity, Severity::Warning);
}

TEST_F(Lint, SaysSoWhereNoRegionRan) {
  auto plain = support::Mlp(32);
  const auto findings = refrain::lint(plain, x);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, Rule::NotRun);
}

TEST_F(Lint, FindsNothingInACutThatAPlanMade) {
  std::vector<support::Mlp> blocks;
  for (int i = 0; i < 16; ++i) blocks.emplace_back(32);
  auto stack = refrain::checkpoint(blocks, refrain::policy::sqrt_n());
  const auto findings = refrain::lint(stack, torch::randn({256, 32}).requires_grad_());
  EXPECT_FALSE(any_warning(findings)) << to_string(findings);
}

class LintOnBothRoutes : public support::OnBothRoutes {};
INSTANTIATE_TEST_SUITE_P(Routes, LintOnBothRoutes, support::kBothRoutes, support::route_name);

TEST_P(LintOnBothRoutes, NamesWhatDiverges) {
  const auto w = torch::randn({8, 8}).requires_grad_();
  int calls = 0;
  auto counts = refrain::checkpoint([&](const Tensor& t) { return (t.mm(w) * ++calls).sin(); },
                                    options().name("counts"));
  const auto findings =
      refrain::lint([&](const Tensor& t) { return counts(t).exp(); }, torch::randn({8, 8}));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].rule, Rule::Diverges);
  EXPECT_EQ(findings[0].region, "counts");
}

TEST_F(Lint, SaysNothingOfBlocksThatAreOffloaded) {
  const auto tier = refrain::tier::arena(Bytes(1 << 20));
  struct NetImpl : nn::Module {
    explicit NetImpl(const refrain::AnyTier& tier)
        : first(register_module("first", refrain::offload(support::Mlp(32, 0.0), tier))),
          second(register_module("second", refrain::offload(support::Mlp(32, 0.0), tier))) {}
    Tensor forward(const Tensor& x) { return second(first(x)); }
    refrain::Checkpoint<support::Mlp> first, second;
  };
  const auto net = std::make_shared<NetImpl>(tier);
  torch::nn::ModuleHolder<NetImpl> model(net);
  const auto findings = refrain::lint(model, torch::randn({64, 32}).requires_grad_());
  for (const Finding& finding : findings)
    EXPECT_NE(finding.rule, Rule::NotRun) << to_string(findings);
  const auto regions = refrain::regions(*net);
  ASSERT_EQ(regions.size(), 2);
  EXPECT_EQ(to_string(regions[0]).find("replayed"), std::string::npos) << to_string(regions[0]);
}

}  // namespace
