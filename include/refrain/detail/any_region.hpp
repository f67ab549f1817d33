// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/options.hpp>

#include <memory>
#include <string>
#include <typeindex>

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

}  // namespace refrain::detail
