// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/call_record.hpp>
#include <refrain/detail/fingerprint.hpp>
#include <refrain/detail/first_run.hpp>
#include <refrain/detail/frame.hpp>
#include <refrain/detail/graph_border.hpp>
#include <refrain/detail/op_log.hpp>
#include <refrain/detail/other_path.hpp>
#include <refrain/detail/saves_watcher.hpp>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace refrain::detail {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

/// One call of a region on the function route: one node stands for it in the graph, runs the body
/// again in its backward, and sends the gradients to all that the body reached: arguments,
/// parameters, captured tensors.
///
/// The engine stays as it is. The first run builds a graph, to see what it reaches, and drops it.
class FunctionFrame final : public Frame {
 public:
  using Frame::Frame;

  void run(const std::shared_ptr<FunctionFrame>& self, const std::vector<at::Tensor>& inputs,
           const FirstRun& run) {
    OpTap::stop_if_asked();
    if (run.result == FirstRun::Result::None) {
      refuse("gives no result to put a gradient into",
             "return what it makes, or use Route::Hooks.");
    }
    Footprint footprint(name(), inputs);
    values_ = checks_values();
    OpLog log;
    if (values_) {
      footprint.watch_closely(&log, &options().generators());
      if (call_record() != nullptr) call_record()->use(log);
    }
    // A cast made before the region would be a part of its graph that no replay has.
    const AutocastCacheOff own_casts;
    GraphBorder border;
    std::optional<Saves> saves;
    if (call_record() != nullptr) {
      saves.emplace(*call_record(), footprint);
      if (!values_) footprint.watch_closely(&call_record()->log(), /*known=*/nullptr);
    }
    // Regions inside are a part of this one's graph, which goes.
    first_run(footprint, saves ? &*saves : nullptr, /*inside=*/nullptr, run.call);
    if (run.watch != nullptr && run.watch->must_stay_plain())
      return tell_first_run(footprint, run);  // with the graph that it has
    if (run.result == FirstRun::Result::Opaque) {
      refuse("gives a result whose tensors it cannot find",
             "teach the type with visit_tensors, or use Route::Hooks.");
    }
    refuse_changed_inputs(inputs, footprint);
    for (const at::Tensor& input : inputs) border.leave_outside(input);
    for_each_read([&](const at::Tensor& tensor) { border.leave_outside(tensor); });
    put_node_under(self, run, border, footprint);
    tell_first_run(footprint, run);
    let_kept_wait_in_tier();
  }

 private:
  /// What autograd saves in a first run that is recorded.
  class Saves final : public SavesWatcher {
   public:
    Saves(CallRecord& record, const Footprint& footprint)
        : record_(record), footprint_(footprint) {}

   private:
    void saved(const at::Tensor& tensor) override { record_.saved(tensor, footprint_); }

    CallRecord& record_;
    const Footprint& footprint_;
  };

  struct Output {
    std::size_t place;  ///< Among all tensors of the result.
    TensorFacts facts;
    std::optional<Fingerprint> value;  ///< If values are checked.
  };

  /// Stands for the region in the graph.
  class ReplayNode final : public torch::autograd::Node {
   public:
    explicit ReplayNode(std::shared_ptr<FunctionFrame> frame) : frame_(std::move(frame)) {}

    variable_list apply(variable_list&& gradients) override {
      std::shared_ptr<FunctionFrame> frame;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        frame = frame_;
      }
      TORCH_CHECK(frame != nullptr, torch::autograd::ERR_BACKWARD_TWICE);
      std::vector<bool> wanted;
      for (std::size_t i = 0; i < num_outputs(); ++i)
        wanted.push_back(task_should_compute_output(i));
      return frame->backward(gradients, wanted);
    }

    void release_variables() override {
      const std::lock_guard<std::mutex> lock(mutex_);
      frame_.reset();
    }

    std::string name() const override { return "refrain::Replay"; }

   private:
    std::shared_ptr<FunctionFrame> frame_;
  };

  /// Replaces the result's differentiable tensors by ones whose history is the node alone; their
  /// own graph goes.
  void put_node_under(const std::shared_ptr<FunctionFrame>& self, const FirstRun& run,
                      const GraphBorder& border, const Footprint& footprint) {
    std::vector<std::vector<at::Tensor*>> tensors;  // each with the places that hold it
    edge_list roots;
    std::size_t place = 0;
    run.for_each_result([&](at::Tensor& tensor) {
      const std::size_t here = place++;
      if (!tensor.defined() || tensor.grad_fn() == nullptr) return;
      const auto known = std::find_if(tensors.begin(), tensors.end(), [&](const auto& places) {
        return places.front()->is_same(tensor);
      });
      if (known != tensors.end()) return known->push_back(&tensor);
      auto edge = torch::autograd::impl::gradient_edge(tensor);
      if (!border.inside(edge)) return;  // handed through
      if (footprint.is_outside(tensor)) {
        refuse(fmt::format("returns {}, a view of memory from outside the region",
                           to_string(TensorFacts(tensor))),
               "return a clone, or use Route::Hooks.");
      }
      outputs_.push_back({here, TensorFacts(tensor), std::nullopt});
      if (values_ && Fingerprint::can_take(tensor)) outputs_.back().value.emplace(tensor);
      tensors.push_back({&tensor});
      roots.push_back(std::move(edge));
    });
    if (roots.empty()) return;
    const auto node = make_node<ReplayNode>(self);
    auto crossings = border.crossings_below(roots);
    inner_leaves_ = drop_leaves(crossings, [&](const at::Tensor& leaf, const auto&) {
      return footprint.made_inside(leaf);
    });
    targets_ = GraphBorder::targets_of(crossings);
    node->set_next_edges(edge_list(targets_));
    roots.clear();
    for (const std::vector<at::Tensor*>& places : tensors) {
      at::Tensor bare = places.front()->tensor_data();
      torch::autograd::set_history(bare, node);
      for (at::Tensor* const tensor : places) *tensor = bare;
    }
  }

  variable_list backward(const variable_list& gradients, const std::vector<bool>& wanted) {
    const GraphBorder border;
    std::vector<at::Tensor> results;
    variable_list answers;
    try {
      // What the replay's own graph saved of a buffer is only there until the buffer is put back.
      replay(nullptr, &results, nullptr,
             call_record() == nullptr ? nullptr : &call_record()->place(), [&] {
               if (call_record() != nullptr) call_record()->rebuilt_all();
               answers = backward_through(std::move(results), border, gradients, wanted);
             });
    } catch (const std::exception&) {
      throw;
    } catch (...) {
      fail_non_standard();
    }
    return answers;
  }

  variable_list backward_through(std::vector<at::Tensor> results, const GraphBorder& border,
                                 const variable_list& gradients, const std::vector<bool>& wanted) {
    const edge_list& targets = targets_;
    const bool create_graph = at::GradMode::is_enabled();
    edge_list roots;
    variable_list root_gradients;
    edge_list all_roots;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const std::size_t place = outputs_[i].place;
      const at::Tensor result = place < results.size() ? results[place] : at::Tensor();
      if (!result.defined() || !outputs_[i].facts.describe(result) || !result.requires_grad())
        fail_output(i, result);
      if (outputs_[i].value) compare_value(i, result);
      all_roots.push_back(torch::autograd::impl::gradient_edge(result));
      if (!gradients[i].defined()) continue;
      roots.push_back(all_roots.back());
      root_gradients.push_back(gradients[i]);
    }
    results.clear();
    auto crossings = border.crossings_below(all_roots);  // in nodes that `all_roots` keeps alive
    const std::size_t inner_leaves =
        drop_leaves(crossings, [&](const at::Tensor&, const auto& edge) {
          return std::find(targets.begin(), targets.end(), edge) == targets.end();
        });
    const edge_list now = GraphBorder::targets_of(crossings);
    if (inner_leaves != inner_leaves_) fail_targets(now.size() + inner_leaves);
    compare(now, targets);
    const BorderCut cut(std::move(crossings), targets);
    edge_list asked;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (wanted[i]) asked.push_back(cut.ends()[i]);
    }
    variable_list answers(targets.size());
    if (roots.empty() || asked.empty()) return answers;
    auto found = torch::autograd::Engine::get_default_engine().execute(
        roots, root_gradients, create_graph, create_graph,
        /*accumulate_grad=*/false, asked);
    for (std::size_t i = 0, next = 0; i < targets.size(); ++i) {
      if (wanted[i]) answers[i] = std::move(found[next++]);
    }
    return answers;
  }

  /// Takes out the crossings to leaves for which `chosen(leaf, edge)`, and says how many such
  /// leaves there were.
  template <class Chosen>
  static std::size_t drop_leaves(std::vector<GraphBorder::Crossing>& crossings,
                                 const Chosen& chosen) {
    std::unordered_set<const torch::autograd::Node*> dropped;
    std::erase_if(crossings, [&](const GraphBorder::Crossing& crossing) {
      const auto& edge = crossing.from->next_edge(crossing.index);
      const auto* const leaf =
          dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get());
      if (leaf == nullptr || !chosen(leaf->variable, edge)) return false;
      dropped.insert(leaf);
      return true;
    });
    return dropped.size();
  }

  [[noreturn]] void fail_output(std::size_t i, const at::Tensor& result) const {
    fail_other_path(fmt::format("replay of `{}` gave another result than the first run.", name()),
                    fmt::format("first difference at result {}: expected {}, got {}",
                                outputs_[i].place, to_string(outputs_[i].facts),
                                result.defined() ? to_string(TensorFacts(result)) : "nothing"));
  }

  void compare_value(std::size_t i, const at::Tensor& result) const {
    const auto block = outputs_[i].value->first_difference(result);
    if (!block) return;
    throw DivergenceError(
        fmt::format("replay of `{}` gave other values than the first run.", name()),
        fmt::format("first difference at result {}: {}, in the {} bytes from {}", outputs_[i].place,
                    to_string(outputs_[i].facts), Fingerprint::kBlock,
                    *block * Fingerprint::kBlock),
        "likely cause: random numbers from a source that LibTorch does not know, a tensor changed "
        "behind autograd's back, a cache, or a kernel that gives other bits each time.",
        "see docs/reading_a_divergence.md");
  }

  void compare(const edge_list& now, const edge_list& then) const {
    const bool equal =
        now.size() == then.size() && std::all_of(now.begin(), now.end(), [&](const auto& edge) {
          return std::find(then.begin(), then.end(), edge) != then.end();
        });
    if (!equal) fail_targets(now.size());
  }

  [[noreturn]] void fail_targets(std::size_t now) const {
    fail_other_path(fmt::format(
        "replay of `{}` depends on {} tensors that need gradients, the first run on {}, or on "
        "others.",
        name(), now, targets_.size() + inner_leaves_));
  }

  void refuse_changed_inputs(const std::vector<at::Tensor>& inputs, Footprint& footprint) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined() && inputs[i].requires_grad() &&
          footprint.entry_of_input(i).defined()) {
        refuse(fmt::format("changes its tensor argument {} in place", i),
               "clone it first, or use Route::Hooks.");
      }
    }
  }

  [[noreturn]] void refuse(const std::string& what, const char* remedy) const {
    throw Error(fmt::format("`{}` {}, which Route::Function cannot serve.", name(), what), remedy);
  }

  std::vector<Output> outputs_;
  bool values_ = false;           ///< Are checked in this call.
  std::size_t inner_leaves_ = 0;  ///< Made in the body itself: their gradients go nowhere.
  /// The node's edges as made: a region around this one may have cut them off for now.
  edge_list targets_;
};

}  // namespace refrain::detail
