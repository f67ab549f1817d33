// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/chain_scan.hpp>
#include <refrain/detail/leaf_gradients.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace refrain::detail {

/// Parameters that other stages use too: the engine gathers their gradients until the last
/// arrives.
struct SharedLeaves {
  std::int64_t first = 0;  ///< Bytes of those whose gradient comes from here first, and exists.
  std::int64_t later = 0;  ///< And of those that have come from somewhere before.

  void add_to(StageCost& cost) const {
    cost.gradients += first;
    cost.plain.backward_peak += later;
    cost.plain.backward_peak_with_gradient += later;
    cost.plain.replay_peak += later;
    for (GradRun& option : cost.options) {
      option.backward_peak += later;
      option.backward_peak_with_gradient += later;
    }
  }

  /// Those of some layers, and puts all leaves of these into `gradients`.
  static SharedLeaves add(LeafGradients& gradients, const ChainScan& scan, Segment layers) {
    const auto is_in = [](const std::vector<at::Tensor>& leaves, const at::Tensor& leaf) {
      return std::any_of(leaves.begin(), leaves.end(),
                         [&leaf](const at::Tensor& other) { return other.is_same(leaf); });
    };
    std::vector<at::Tensor> added;
    SharedLeaves shared;
    for (std::int64_t k = layers.begin; k < layers.end; ++k) {
      for (const at::Tensor& leaf : scan.facts()[static_cast<std::size_t>(k)].leaves) {
        if (is_in(added, leaf)) continue;
        added.push_back(leaf);
        bool made_before = is_in(scan.loss_leaves(), leaf);
        for (auto later = static_cast<std::size_t>(layers.end); later < scan.facts().size();
             ++later) {
          made_before = made_before || is_in(scan.facts()[later].leaves, leaf);
        }
        bool made_later = false;
        for (auto earlier = static_cast<std::size_t>(layers.begin); earlier-- > 0;)
          made_later = made_later || is_in(scan.facts()[earlier].leaves, leaf);
        const auto bytes = static_cast<std::int64_t>(leaf.nbytes());
        if (made_before) shared.later += bytes;
        if (made_later && !made_before && leaf.grad().defined()) shared.first += bytes;
        gradients.add(leaf, made_before);
      }
    }
    return shared;
  }
};

}  // namespace refrain::detail
