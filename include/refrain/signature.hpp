// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {

/// What a chain of layers and its inputs look like, by which a plan knows the model it was made
/// for. `refrain::signature(layers, inputs...)` makes it.
struct Signature {
  struct Layer {
    std::string name;  ///< "3"
    std::string type;  ///< "BlockImpl"
    /// "fc1.weight float32[512, 128]", buffers too; then "norm in eval mode".
    std::vector<std::string> tensors;
    friend bool operator==(const Layer&, const Layer&) = default;
  };
  std::vector<Layer> layers;
  std::vector<std::string> inputs;  ///< "int64[4, 256]", "float32[8], with a gradient"
  std::string device;               ///< "cuda": which one makes no difference.
  std::string libtorch;             ///< "2.11.0"

  friend bool operator==(const Signature&, const Signature&) = default;
};

namespace detail {

[[nodiscard]] inline std::string first_difference(const std::string& what,
                                                  const std::vector<std::string>& then,
                                                  const std::vector<std::string>& now) {
  for (std::size_t i = 0; i < std::max(then.size(), now.size()); ++i) {
    const std::string nothing = "none";
    const std::string& a = i < then.size() ? then[i] : nothing;
    const std::string& b = i < now.size() ? now[i] : nothing;
    if (a != b) return fmt::format("{} {}: {} then, {} now", what, i, a, b);
  }
  return {};
}

}  // namespace detail

/// Where two signatures part; empty if they do not.
[[nodiscard]] inline std::string first_difference(const Signature& then, const Signature& now) {
  const auto differ = [](std::string_view what, const auto& a, const auto& b) {
    return fmt::format("{}: {} then, {} now", what, a, b);
  };
  if (then.layers.size() != now.layers.size())
    return differ("layers", then.layers.size(), now.layers.size());
  for (std::size_t i = 0; i < then.layers.size(); ++i) {
    const Signature::Layer& a = then.layers[i];
    const Signature::Layer& b = now.layers[i];
    if (a.type != b.type) return differ(fmt::format("layer {}", i), a.type, b.type);
    if (a.name != b.name) return differ(fmt::format("name of layer {}", i), a.name, b.name);
    std::string tensor =
        detail::first_difference(fmt::format("layer {}, tensor", i), a.tensors, b.tensors);
    if (!tensor.empty()) return tensor;
  }
  std::string input = detail::first_difference("input", then.inputs, now.inputs);
  if (!input.empty()) return input;
  if (then.device != now.device) return differ("device", then.device, now.device);
  if (then.libtorch != now.libtorch) return differ("LibTorch", then.libtorch, now.libtorch);
  return {};
}

/// A number for a signature, the same on every machine: FNV-1a over all it says.
[[nodiscard]] inline std::uint64_t hash_of(const Signature& signature) {
  constexpr std::uint64_t kBasis = 0xCBF29CE484222325U;
  constexpr std::uint64_t kPrime = 0x100000001B3U;
  std::uint64_t hash = kBasis;
  const auto mix = [&hash](std::string_view text) {
    for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime;
    hash = (hash ^ 0xFFU) * kPrime;  // in no text, so it parts them
  };
  for (const Signature::Layer& layer : signature.layers) {
    mix(layer.name);
    mix(layer.type);
    for (const std::string& tensor : layer.tensors) mix(tensor);
    mix("layer");
  }
  for (const std::string& input : signature.inputs) mix(input);
  mix(signature.device);
  mix(signature.libtorch);
  return hash;
}

}  // namespace refrain
