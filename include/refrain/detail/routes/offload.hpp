// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/first_run.hpp>
#include <refrain/detail/frame.hpp>
#include <refrain/detail/move_hook.hpp>
#include <refrain/detail/move_line.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/error.hpp>

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <fmt/format.h>

#include <exception>
#include <memory>

namespace refrain::detail {

/// One call of a region that replays nothing: what autograd saves in it goes to a tier.
class OffloadedCall final : public HookMaker {
 public:
  explicit OffloadedCall(const RegionSettings& settings) : settings_(settings) {}

  void run(const FirstRun& run) {
    require_tier();
    EngineProxy::install();
    const auto& line = MoveLine::current();
    line->move_what_waits();
    {
      const HookScope hooked(this);
      run.call();
    }
    line->move_what_waits();
    if (failed_) std::rethrow_exception(failed_);
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> make() override {
    // An error thrown here would leave an operator half done.
    try {
      if (!failed_) MoveLine::current()->move_a_few();
    } catch (const TierError&) {
      failed_ = std::current_exception();
    }
    const CheckpointOptions& options = settings_.options;
    return std::make_unique<MoveHook>(options.tier(), settings_.name,
                                      options.check() != Check::None);
  }

 private:
  void require_tier() const {
    if (settings_.options.tier()) return;
    throw OptionError(fmt::format("`{}` is to move what autograd saves, but has no tier to move it "
                                  "to.",
                                  settings_.name),
                      "give it one: options.tier(refrain::tier::host()).");
  }

  const RegionSettings& settings_;
  std::exception_ptr failed_;  ///< The tier's first failure; the region tells it when it ends.
};

}  // namespace refrain::detail
