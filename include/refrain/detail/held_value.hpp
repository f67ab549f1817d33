// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/visit_tensors.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

namespace refrain::detail {

/// A value of any type whose tensors can be found, as goes from one stage of a chain to the next.
class HeldValue {
 public:
  HeldValue() = default;
  template <class T>
    requires(!std::same_as<T, HeldValue>)
  explicit HeldValue(T value) : held_(std::make_unique<Held<T>>(std::move(value))) {
    static_assert(kVisitable<T>,
                  "refrain: teach the type of a stage's result with a free function "
                  "visit_tensors(value, visitor)");
  }
  HeldValue(const HeldValue& other) : held_(other.held_ ? other.held_->copy() : nullptr) {}
  HeldValue& operator=(const HeldValue& other) { return *this = HeldValue(other); }
  HeldValue(HeldValue&&) = default;
  HeldValue& operator=(HeldValue&&) = default;
  ~HeldValue() = default;

  /// Null if it is of another type.
  template <class T>
  [[nodiscard]] T* as() {
    auto* const held = dynamic_cast<Held<T>*>(held_.get());
    return held == nullptr ? nullptr : &held->value;
  }

  [[nodiscard]] std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    if (!held_) return all;
    held_->visit([&all](at::Tensor& tensor) {
      if (tensor.defined()) all.push_back(tensor);
    });
    return all;
  }

  template <class Visit>
  friend void visit_tensors(HeldValue& value, Visit&& visit) {
    if (value.held_) value.held_->visit([&visit](at::Tensor& tensor) { visit(tensor); });
  }

 private:
  struct AnyHeld {
    virtual ~AnyHeld() = default;
    [[nodiscard]] virtual std::unique_ptr<AnyHeld> copy() const = 0;
    virtual void visit(TensorVisitor::OnTensor on_tensor) = 0;
  };
  template <class T>
  struct Held final : AnyHeld {
    T value;
    explicit Held(T given) : value(std::move(given)) {}
    [[nodiscard]] std::unique_ptr<AnyHeld> copy() const override {
      return std::make_unique<Held>(value);
    }
    void visit(TensorVisitor::OnTensor on_tensor) override { for_each_tensor_in(value, on_tensor); }
  };

  std::unique_ptr<AnyHeld> held_;
};

}  // namespace refrain::detail
