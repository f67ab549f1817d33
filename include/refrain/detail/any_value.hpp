// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>
#include <refrain/visit_tensors.hpp>

#include <torch/nn/modules/container/any.h>

#include <fmt/format.h>

#include <tuple>
#include <utility>
#include <vector>

namespace refrain::detail {

/// What goes from one layer of a `Sequential` to the next: the first layer's inputs, then one
/// result.
class StageValue {
 public:
  template <class... Inputs>
  explicit StageValue(Inputs&&... inputs) {
    values_.reserve(sizeof...(inputs));
    (values_.emplace_back(torch::nn::AnyValue(std::forward<Inputs>(inputs))), ...);
  }
  StageValue(const StageValue&) = default;
  StageValue(StageValue&&) = default;
  StageValue& operator=(const StageValue&) = default;
  StageValue& operator=(StageValue&&) = default;

  [[nodiscard]] StageValue through(torch::nn::AnyModule& layer) && {
    std::vector<torch::nn::AnyValue> out;
    if (values_.size() == 1) {
      out.push_back(layer.any_forward(std::move(values_[0])));
    } else if (values_.size() == 2) {
      out.push_back(layer.any_forward(std::move(values_[0]), std::move(values_[1])));
    } else if (values_.size() == 3) {
      out.push_back(
          layer.any_forward(std::move(values_[0]), std::move(values_[1]), std::move(values_[2])));
    } else {
      if (values_.size() != 4) {
        throw OptionError(
            fmt::format("the first layer of a chain takes 1 to 4 inputs, got {}.", values_.size()),
            "pack them into a tuple or a struct.");
      }
      out.push_back(layer.any_forward(std::move(values_[0]), std::move(values_[1]),
                                      std::move(values_[2]), std::move(values_[3])));
    }
    values_ = std::move(out);
    return std::move(*this);
  }

  template <class Result>
  [[nodiscard]] Result result() {
    return values_.at(0).template get<Result>();
  }

  template <class Visit>
  friend void visit_tensors(StageValue& value, Visit&& visit) {
    for (torch::nn::AnyValue& any : value.values_) {
      using at::Tensor;
      visit_if<Tensor>(any, visit) || visit_if<std::vector<Tensor>>(any, visit) ||
          visit_if<std::tuple<Tensor, Tensor>>(any, visit) ||
          visit_if<std::tuple<Tensor, Tensor, Tensor>>(any, visit) ||
          visit_if<std::tuple<Tensor, std::tuple<Tensor, Tensor>>>(any, visit);
    }
  }

 private:
  template <class T, class Visit>
  static bool visit_if(torch::nn::AnyValue& any, Visit&& visit) {
    T* const value = any.try_get<T>();
    if (value != nullptr) visit(*value);
    return value != nullptr;
  }

  std::vector<torch::nn::AnyValue> values_;
};

}  // namespace refrain::detail
