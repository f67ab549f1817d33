// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/any_region.hpp>
#include <refrain/detail/any_value.hpp>
#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/graph_ends.hpp>
#include <refrain/detail/held_value.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/signature.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/version.h>

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace refrain::detail {

/// One layer of a chain as the profiler calls it.
struct ProfiledLayer {
  std::string name;
  std::string
      type;  ///< Layers of one type that take the same bytes are taken to take the same time.
  std::vector<std::string> tensors;  ///< Its parameters and buffers, and which parts do not train.
  std::function<HeldValue(HeldValue)> run;
};

[[nodiscard]] inline std::vector<std::string> described_tensors(const torch::nn::Module& module) {
  std::vector<std::string> described;
  const auto describe = [&described](const auto& named, std::string_view what_if_frozen) {
    for (const auto& item : named) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      described.push_back(fmt::format("{} {}{}", item.key(), shape_text(TensorFacts(tensor)),
                                      tensor.requires_grad() ? "" : what_if_frozen));
    }
  };
  describe(module.named_parameters(), ", frozen");
  describe(module.named_buffers(), "");
  for (const auto& part : module.named_modules()) {
    if (part.value()->is_training()) continue;
    described.push_back(
        fmt::format("{} in eval mode", part.key().empty() ? std::string("all") : part.key()));
  }
  return described;
}

/// A chain of layers, whatever they are, and what goes into the first.
struct ProfiledChain {
  std::vector<ProfiledLayer> layers;
  HeldValue input;
  std::vector<at::Generator> generators = {};  ///< That regions in the layers name.

  [[nodiscard]] c10::Device device() const {
    for (const at::Tensor& tensor : input.tensors()) return tensor.device();
    return {c10::kCPU};
  }
};

template <class... Inputs>
[[nodiscard]] ProfiledChain chain_of(const std::shared_ptr<torch::nn::SequentialImpl>& sequential,
                                     const Inputs&... inputs) {
  ProfiledChain chain;
  chain.input = HeldValue(StageValue(inputs...));
  const auto children = sequential->named_children();
  add_generators(*sequential, chain.generators);
  for (std::size_t i = 0; i < sequential->size(); ++i) {
    chain.layers.push_back({children[i].key(), children[i].value()->name(),
                            described_tensors(*children[i].value()),
                            [sequential, i](HeldValue value) {
                              auto& layer = *(sequential->begin() + static_cast<std::ptrdiff_t>(i));
                              return HeldValue(std::move(*value.as<StageValue>()).through(layer));
                            }});
  }
  return chain;
}

/// `extras` go to each layer.
template <class Layer, class Value, class... Extras>
[[nodiscard]] ProfiledChain chain_of(const std::vector<Layer>& layers, const Value& value,
                                     const Extras&... extras) {
  using Result =
      std::decay_t<decltype(call_thing(std::declval<Layer&>(), std::declval<Value>(), extras...))>;
  // Copies: a function may change itself.
  const auto own = std::make_shared<std::vector<Layer>>(layers);
  // The graph that an argument comes from is the caller's.
  auto given_to_all = std::make_tuple(extras...);
  for_each_tensor_in(given_to_all, [](at::Tensor& tensor) {
    if (tensor.defined() && tensor.requires_grad() && !tensor.is_leaf())
      tensor = GradientSink::behind(tensor, nullptr);
  });
  ProfiledChain chain;
  chain.input = HeldValue(Result(value));
  for (std::size_t i = 0; i < own->size(); ++i) {
    std::string type = "function";
    std::vector<std::string> tensors;
    if constexpr (Holder<Layer>) {
      const torch::nn::Module& module = *(*own)[i];
      type = module.name();
      tensors = described_tensors(module);
    }
    const auto named = generators_of((*own)[i]);
    chain.generators.insert(chain.generators.end(), named.begin(), named.end());
    chain.layers.push_back({std::to_string(i), std::move(type), std::move(tensors),
                            [own, i, given_to_all](HeldValue given) {
                              const auto call = [&](const auto&... extra) {
                                return call_thing((*own)[i], std::move(*given.as<Result>()),
                                                  extra...);
                              };
                              return HeldValue(std::apply(call, given_to_all));
                            }});
  }
  return chain;
}

[[nodiscard]] inline Signature signature_of(const ProfiledChain& chain) {
  Signature signature;
  for (const ProfiledLayer& layer : chain.layers)
    signature.layers.push_back({layer.name, layer.type, layer.tensors});
  for (const at::Tensor& input : chain.input.tensors()) {
    signature.inputs.push_back(shape_text(TensorFacts(input)) +
                               (input.requires_grad() ? ", with a gradient" : ""));
  }
  signature.device = c10::DeviceTypeName(chain.device().type(), /*lower_case=*/true);
  signature.libtorch = TORCH_VERSION;
  return signature;
}

}  // namespace refrain::detail
