// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/forward_signature.hpp>
#include <refrain/options.hpp>

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <string>
#include <typeindex>
#include <vector>

namespace refrain::detail {

/// What `enable`, `disable` and `regions` see of a checkpointed module, whatever it wraps.
class AnyRegion {
 public:
  virtual ~AnyRegion() = default;

  [[nodiscard]] virtual bool enabled() const = 0;
  virtual void set_enabled(bool on) = 0;
  [[nodiscard]] virtual const CheckpointOptions& options() const = 0;
  /// What messages call it.
  [[nodiscard]] virtual const std::string& region_name() const = 0;
  /// The place in the model, for messages; an explicit `CheckpointOptions().name()` stays.
  virtual void set_path(const std::string& path) = 0;
  [[nodiscard]] virtual std::string wrapped_type() const = 0;
  [[nodiscard]] virtual std::type_index wrapped_id() const = 0;
};

/// Adds the generators that regions in a module were told of.
inline void add_generators(const torch::nn::Module& module, std::vector<at::Generator>& to) {
  for (const auto& part : module.modules(/*include_self=*/false)) {
    const auto* const region = dynamic_cast<const AnyRegion*>(part.get());
    if (region == nullptr) continue;
    const auto& own = region->options().generators();
    to.insert(to.end(), own.begin(), own.end());
  }
  if (const auto* const region = dynamic_cast<const AnyRegion*>(&module)) {
    const auto& own = region->options().generators();
    to.insert(to.end(), own.begin(), own.end());
  }
}

/// All generators that regions in anything that can be called were told of.
template <class Thing>
[[nodiscard]] std::vector<at::Generator> generators_of(const Thing& thing) {
  std::vector<at::Generator> generators;
  if constexpr (Module<Thing>) {
    add_generators(thing, generators);
  } else if constexpr (Holder<Thing>) {
    add_generators(*thing.ptr(), generators);
  } else if constexpr (requires { thing.options().generators(); }) {
    generators = thing.options().generators();
  }
  if constexpr (requires { thing.layers().size(); }) {
    for (const auto& layer : thing.layers()) {
      const auto inside = generators_of(layer);
      generators.insert(generators.end(), inside.begin(), inside.end());
    }
  }
  return generators;
}

}  // namespace refrain::detail
