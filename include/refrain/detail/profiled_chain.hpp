// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/any_value.hpp>
#include <refrain/detail/chain_value.hpp>
#include <refrain/detail/forward_signature.hpp>

#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// One layer of a chain as the profiler calls it.
struct ProfiledLayer {
  std::string name;
  std::string
      type;  ///< Layers of one type that take the same bytes are taken to take the same time.
  std::function<ChainValue(ChainValue)> run;
};

/// A chain of layers, whatever they are, and what goes into the first.
struct ProfiledChain {
  std::vector<ProfiledLayer> layers;
  ChainValue input;
};

template <class... Inputs>
[[nodiscard]] ProfiledChain chain_of(const std::shared_ptr<torch::nn::SequentialImpl>& sequential,
                                     const Inputs&... inputs) {
  ProfiledChain chain;
  chain.input = ChainValue(StageValue(inputs...));
  const auto children = sequential->named_children();
  for (std::size_t i = 0; i < sequential->size(); ++i) {
    chain.layers.push_back(
        {children[i].key(), children[i].value()->name(), [sequential, i](ChainValue value) {
           auto& layer = *(sequential->begin() + static_cast<std::ptrdiff_t>(i));
           return ChainValue(std::move(*value.as<StageValue>()).through(layer));
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
  ProfiledChain chain;
  chain.input = ChainValue(Result(value));
  for (std::size_t i = 0; i < own->size(); ++i) {
    std::string type = "function";
    if constexpr (Holder<Layer>) type = (*own)[i]->name();
    chain.layers.push_back(
        {std::to_string(i), std::move(type), [own, i, extras...](ChainValue given) {
           return ChainValue(call_thing((*own)[i], std::move(*given.as<Result>()), extras...));
         }});
  }
  return chain;
}

}  // namespace refrain::detail
