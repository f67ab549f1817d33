// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/device_meter.hpp>
#include <refrain/detail/footprint.hpp>
#include <refrain/detail/graph_border.hpp>
#include <refrain/detail/graph_ends.hpp>
#include <refrain/detail/leaf_gradients.hpp>
#include <refrain/detail/profiled_chain.hpp>
#include <refrain/detail/reached.hpp>
#include <refrain/detail/storage_set.hpp>
#include <refrain/error.hpp>
#include <refrain/segment.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// What one layer is like, apart from its costs.
struct LayerFacts {
  bool gives_input_back = false;          ///< All of its result lies in its input's memory.
  std::vector<std::int64_t> input_sizes;  ///< Bytes of each storage of its input.
  std::vector<bool> saves_input;          ///< For each storage of its input.
  std::vector<bool> saves_result;         ///< For each storage of its result.
  std::vector<at::Tensor> leaves;         ///< That its backward gives gradients to.
  GradientLayouts gradients;              ///< Of its input.
};

/// The value as it would come from a layer before: its graph ends in sinks, which note how the
/// gradients lie that they take.
[[nodiscard]] inline HeldValue behind_sinks(HeldValue value, GradientLayouts* layouts = nullptr) {
  for_each_tensor_in(value, [layouts](at::Tensor& tensor) {
    if (!tensor.defined()) return;
    std::shared_ptr<GradientLayout> seen;
    if (layouts != nullptr && tensor.requires_grad()) {
      seen = std::make_shared<GradientLayout>();
      layouts->push_back(seen);
    }
    tensor = GradientSink::behind(tensor, std::move(seen));
  });
  return value;
}

/// Runs each layer of a chain forward and backward, then the loss if there is one, and notes what
/// they are like.
class ChainScan {
 public:
  ChainScan(const ProfiledChain& chain, const StorageSet& constant, const DeviceMeter& device,
            const std::function<at::Tensor(HeldValue)>& loss) {
    HeldValue value = chain.input;
    for (const ProfiledLayer& layer : chain.layers) {
      facts_.emplace_back();
      LayerFacts& facts = facts_.back();
      note_saves(layer, value, constant);
      const StorageSet before(value.tensors());
      const GraphBorder border;
      const std::int64_t live = device.live();
      HeldValue result = layer.run(behind_sinks(std::move(value), &facts.gradients));
      refuse_hidden_result(layer, result);
      kept_ += device.live() - live;
      refuse_other_graphs(layer, result.tensors(), border);
      StorageSet made(result.tensors());
      made.remove(before);
      facts.gives_input_back = made.empty();
      facts.leaves = leaves_below(result.tensors());
      value = behind_sinks(result);
      run_backward(std::exchange(result, {}).tensors(), facts.leaves);
    }
    if (!loss) return;
    const at::Tensor total = loss(behind_sinks(std::move(value), &loss_gradients_));
    refuse_no_loss(total);
    loss_leaves_ = leaves_below({total});
    run_backward({total}, loss_leaves_);
  }

  [[nodiscard]] const std::vector<LayerFacts>& facts() const { return facts_; }
  /// About the bytes that a plain step keeps.
  [[nodiscard]] std::int64_t kept() const { return kept_; }
  [[nodiscard]] const std::vector<at::Tensor>& loss_leaves() const { return loss_leaves_; }
  /// How the gradient of a layer's result lies.
  [[nodiscard]] const GradientLayouts& result_gradients(std::int64_t layer) const {
    const auto next = static_cast<std::size_t>(layer) + 1;
    return next < facts_.size() ? facts_[next].gradients : loss_gradients_;
  }

  /// Of the input of a layer, the bytes that it does not save; `by_nobody`: nor a layer before it.
  [[nodiscard]] std::int64_t unsaved_input(std::int64_t layer, bool by_nobody) const {
    const LayerFacts& own = fact(layer);
    std::int64_t bytes = 0;
    for (std::size_t k = 0; k < own.saves_input.size(); ++k) {
      if (own.saves_input[k]) continue;
      if (by_nobody && may_be_saved_before(layer, k)) continue;
      bytes += own.input_sizes[k];
    }
    return bytes;
  }

  /// Layers that cannot be parted: see `Profile::layers`.
  [[nodiscard]] std::vector<Segment> stages() const {
    std::vector<Segment> stages;
    const auto count = static_cast<std::int64_t>(facts_.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const bool joins = i > 0 && (fact(i).gives_input_back ||
                                   (stages.size() == 1 && only_gives_back(stages.back())));
      if (joins) {
        stages.back().end = i + 1;
      } else {
        stages.push_back({i, i + 1});
      }
    }
    return stages;
  }

 private:
  /// Whether the layer that made storage `k` of a layer's input saves it, or one that handed it on.
  [[nodiscard]] bool may_be_saved_before(std::int64_t layer, std::size_t k) const {
    const std::size_t count = fact(layer).saves_input.size();
    for (std::int64_t i = layer - 1; i >= 0; --i) {
      const auto& saves = fact(i).saves_result;
      if (saves.size() != count || saves[k]) return true;
      if (!fact(i).gives_input_back) return false;
    }
    return true;
  }

  [[nodiscard]] const LayerFacts& fact(std::int64_t i) const {
    return facts_[static_cast<std::size_t>(i)];
  }

  [[nodiscard]] bool only_gives_back(Segment layers) const {
    for (std::int64_t i = layers.begin; i < layers.end; ++i) {
      if (!fact(i).gives_input_back) return false;
    }
    return true;
  }

  static void refuse_hidden_result(const ProfiledLayer& layer, HeldValue& result) {
    if (!result.tensors().empty()) return;
    throw OptionError(
        fmt::format("cannot profile layer `{}`: its result holds no tensor that can be found.",
                    layer.name),
        "likely cause: a struct of yours between the layers of a Sequential, where only a tensor, "
        "a vector and the usual tuples of tensors are known.",
        "put the layers into a std::vector, and teach the struct with visit_tensors().");
  }

  static void refuse_no_loss(const at::Tensor& total) {
    if (total.defined() && total.numel() == 1 && total.requires_grad()) return;
    throw OptionError(
        fmt::format("cannot profile with a loss that gives {}.",
                    total.defined() ? fmt::format("{}{}", to_string(TensorFacts(total)),
                                                  total.requires_grad() ? "" : ", without a graph")
                                    : std::string("no tensor")),
        "give one number that depends on the chain's output.");
  }

  /// A backward through a graph that was there before would free it for its owner.
  static void refuse_other_graphs(const ProfiledLayer& layer,
                                  const std::vector<at::Tensor>& results,
                                  const GraphBorder& border) {
    torch::autograd::edge_list roots;
    for (const at::Tensor& result : results) {
      if (!result.requires_grad()) continue;
      auto root = torch::autograd::impl::gradient_edge(result);
      if (border.inside(root)) roots.push_back(std::move(root));
    }
    for (const auto& target : GraphBorder::targets_of(border.crossings_below(roots))) {
      const auto* const node = target.function.get();
      if (dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr ||
          dynamic_cast<const GradientSink*>(node) != nullptr) {
        continue;
      }
      throw OptionError(
          fmt::format("cannot profile layer `{}`: it uses a tensor that was computed before it, "
                      "outside the chain.",
                      layer.name),
          fmt::format("its graph leads on to {}.", node->name()),
          "likely cause: a captured tensor, as of a skip connection or an encoder.",
          "let the tensor go through the chain, or give it to every layer as an argument.");
    }
  }

  /// On a copy of its input, of which the layer has the only one.
  void note_saves(const ProfiledLayer& layer, const HeldValue& value, const StorageSet& constant) {
    HeldValue copy = value;
    for_each_tensor_in(copy, [&constant](at::Tensor& tensor) {
      if (!tensor.defined() || constant.contains(storage_of(tensor))) return;
      const bool tracked = tensor.requires_grad();
      tensor = tensor.detach().clone();
      if (tracked) tensor = GradientSink::behind(tensor.requires_grad_(), nullptr);
    });
    StorageSet input(copy.tensors());
    input.remove(constant);
    facts_.back().input_sizes = input.sizes();
    HeldValue result = layer.run(std::move(copy));
    StorageSet output(result.tensors());
    output.remove(constant);
    torch::autograd::edge_list graph;
    for (const at::Tensor& tensor : result.tensors()) {
      if (tensor.requires_grad()) graph.push_back(torch::autograd::impl::gradient_edge(tensor));
    }
    result = HeldValue();
    facts_.back().saves_input = input.alive();
    facts_.back().saves_result = output.alive();
  }

  static void run_backward(std::vector<at::Tensor> roots, const std::vector<at::Tensor>& leaves) {
    LeafGradients gradients;
    for (const at::Tensor& leaf : leaves) gradients.add(leaf, false);
    GradientSource::run_and_drop(std::move(roots));
  }

  std::vector<LayerFacts> facts_;
  std::int64_t kept_ = 0;
  std::vector<at::Tensor> loss_leaves_;
  GradientLayouts loss_gradients_;
};

}  // namespace refrain::detail
