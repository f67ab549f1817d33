// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/graph_border.hpp>
#include <refrain/error.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Where the graph of a kept value would begin, in a replay, which does not have it. No gradient
/// may pass: the code's part of it would be missing.
class KeptNode final : public torch::autograd::Node {
 public:
  explicit KeptNode(std::string name) : name_(std::move(name)) { ++alive_; }
  KeptNode(const KeptNode&) = delete;
  KeptNode& operator=(const KeptNode&) = delete;
  ~KeptNode() override { --alive_; }

  static void put_under(at::Tensor& tensor, const std::string& name) {
    torch::autograd::set_history(tensor, make_node<KeptNode>(name));
  }

  /// Throws `Error` if a backward pass from `roots` would come to one. Costs nothing where none is.
  static void refuse_below(const torch::autograd::edge_list& roots) {
    if (alive_.load(std::memory_order_relaxed) == 0) return;
    std::unordered_set<const torch::autograd::Node*> seen;
    std::vector<const torch::autograd::Node*> next;
    const auto visit = [&](const torch::autograd::Edge& edge) {
      const auto* const node = edge.function.get();
      if (node != nullptr && seen.insert(node).second) next.push_back(node);
    };
    for (const auto& root : roots) visit(root);
    while (!next.empty()) {
      const auto* const node = next.back();
      next.pop_back();
      if (const auto* const kept = dynamic_cast<const KeptNode*>(node)) kept->fail();
      for (const auto& edge : node->next_edges()) visit(edge);
    }
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*gradients*/) override {
    fail();
  }
  std::string name() const override { return "refrain::Kept"; }

 private:
  [[noreturn]] void fail() const {
    throw Error(
        fmt::format("a gradient that the region takes itself runs through what keep(\"{}\") "
                    "gave, whose graph the replay does not have.",
                    name_),
        "take the gradient inside the kept code, or detach the kept value first.");
  }

  static inline std::atomic<std::int64_t> alive_ = 0;
  std::string name_;
};

}  // namespace refrain::detail
