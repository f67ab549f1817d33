// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/kept_node.hpp>
#include <refrain/detail/outside_graph.hpp>

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#if __has_include(<torch/csrc/autograd/node_creation_hook.h>)
#include <torch/csrc/autograd/node_creation_hook.h>
#define REFRAIN_DETAIL_NODE_CREATION_HOOKS 1
#endif

/// What autograd saves: a thread-local view of every tensor that autograd keeps for backward.
///
/// LibTorch asks the process's engine for saved-tensor hooks each time it saves a tensor. The base
/// engine has none to give, so a proxy is put in front of it that answers from a thread-local and
/// hands everything else on.
namespace refrain::detail {

/// Makes one hook object for each tensor that autograd saves on this thread.
class HookMaker {
 public:
  /// Null: autograd goes its usual way.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make() = 0;

 protected:
  ~HookMaker() = default;
};

inline constinit thread_local HookMaker* current_hook_maker = nullptr;

/// Hears of the backward passes that this thread asks for, be it inside another.
class BackwardListener {
 public:
  virtual void backward_begins() = 0;
  virtual void backward_ends() = 0;

  /// While it lives, `listener` is told; null: nobody.
  class Scope {
   public:
    explicit Scope(BackwardListener* listener) : before_(std::exchange(current_, listener)) {}
    ~Scope() { current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    BackwardListener* before_;
  };

  /// One pass.
  class Pass {
   public:
    Pass() : listener_(current_) {
      if (listener_ != nullptr) listener_->backward_begins();
    }
    ~Pass() {
      if (listener_ != nullptr) listener_->backward_ends();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    BackwardListener* listener_;
  };

 protected:
  ~BackwardListener() = default;

 private:
  static inline constinit thread_local BackwardListener* current_ = nullptr;
};

/// Delegates to the engine that was there before, but for saved-tensor hooks and for gradients that
/// a replay would add a second time.
///
/// It must delegate: the device threads belong to whichever engine ran the first backward, and an
/// embedding Python keeps its own hooks in its own engine.
class EngineProxy final : public torch::autograd::Engine {
 public:
  using NodePtr =
      decltype(torch::autograd::Edge::function);  // its smart pointer differs between versions

  /// Makes sure that this thread's hook makers are asked. Costs a comparison when nothing changed.
  static void install() {
    EngineProxy& proxy = instance();
    Engine* const current = &Engine::get_default_engine();
    if (current != &proxy && current != proxy.leads_here_.load(std::memory_order_relaxed))
      proxy.chain();
  }

  ~EngineProxy() override { stop(); }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    const BackwardListener::Pass told;
    const OutsideGraphScope* const replay = OutsideGraphScope::innermost();
    if (replay != nullptr) KeptNode::refuse_below(roots);
    if (replay == nullptr || !accumulate_grad)
      return previous().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    const OutsideGraphScope::InnerPass pass(*replay, roots, inputs, outputs);
    if (pass.empty()) return {};
    return previous().execute(pass.roots(), pass.gradients(), keep_graph, create_graph,
                              accumulate_grad, pass.inputs());
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, NodePtr root,
      torch::autograd::InputBuffer&& buffer) override {
    return previous().execute_with_graph_task(task, std::move(root), std::move(buffer));
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    if (asked_for_ == this) asked_for_ = nullptr;
    return previous().make_anomaly_metadata();
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (current_hook_maker != nullptr) {
      if (auto hooks = current_hook_maker->make()) return hooks;
    }
    return previous().get_default_saved_variable_hooks();
  }

#ifdef REFRAIN_DETAIL_NODE_CREATION_HOOKS
  std::vector<std::unique_ptr<torch::autograd::NodeCreationHook>> get_node_creation_hooks()
      override {
    return previous().get_node_creation_hooks();
  }
#endif

 private:
  EngineProxy() = default;

  Engine& previous() const { return *previous_.load(std::memory_order_relaxed); }

  // Leaked: device threads may outlive static destruction.
  static EngineProxy& instance() {
    static auto* const proxy = new EngineProxy;
    return *proxy;
  }

  void chain() {
    while (true) {
      Engine& current = Engine::get_default_engine();
      if (&current == this) return;
      // Not under the lock: Python's engine waits for the interpreter's own here.
      const bool comes_back = previous_.load() != nullptr && leads_here(current);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (&Engine::get_default_engine() != &current) continue;
      if (comes_back) return leads_here_.store(&current);
      previous_.store(&current);
      return torch::autograd::set_default_engine_stub([]() -> Engine& { return instance(); });
    }
  }

  /// Whether an engine that took our place hands on to us: another copy of this proxy does,
  /// Python's engine does not.
  bool leads_here(Engine& engine) {
    asked_for_ = this;
    const auto unused = engine.make_anomaly_metadata();
    return std::exchange(asked_for_, nullptr) == nullptr;
  }

  static inline constinit thread_local EngineProxy* asked_for_ = nullptr;

  std::mutex mutex_;
  std::atomic<Engine*> leads_here_{nullptr};
  std::atomic<Engine*> previous_{nullptr};
};

/// Puts `maker` in charge of what autograd saves on this thread; null gives autograd its usual way
/// back.
class HookScope {
 public:
  explicit HookScope(HookMaker* maker) : before_(std::exchange(current_hook_maker, maker)) {}
  ~HookScope() { current_hook_maker = before_; }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  HookMaker* before_;
};

/// False while somebody switched saved-tensor hooks off on this thread: nothing can be forgotten
/// then.
inline bool hooks_enabled() { return at::SavedTensorDefaultHooks::is_enabled(); }

/// Switches them on for a replay, whose first run had them on.
class HooksEnabledScope {
 public:
  HooksEnabledScope() : reason_(at::SavedTensorDefaultHooks::get_disabled_error_message()) {
    if (reason_) at::SavedTensorDefaultHooks::enable();
  }
  ~HooksEnabledScope() {
    if (reason_) at::SavedTensorDefaultHooks::disable(*reason_, /*fail_if_non_empty=*/false);
  }
  HooksEnabledScope(const HooksEnabledScope&) = delete;
  HooksEnabledScope& operator=(const HooksEnabledScope&) = delete;

 private:
  std::optional<std::string> reason_;  ///< Why somebody had switched them off.
};

}  // namespace refrain::detail
