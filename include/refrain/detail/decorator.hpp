// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/tier.hpp>

#include <utility>

namespace refrain::detail {

/// What a tier that stands before another hands on to it. `Self` derives from it.
template <class Self>
class Decorator {
 public:
  [[nodiscard]] Bytes on_the_way() const { return upstream_.on_the_way(); }
  [[nodiscard]] Bytes capacity() const { return upstream_.capacity(); }
  [[nodiscard]] Self with_on_the_way(Bytes most) const {
    Self other = static_cast<const Self&>(*this);
    other.upstream_ = upstream_.with_on_the_way(most);
    return other;
  }

 private:
  friend Self;
  explicit Decorator(AnyTier upstream) : upstream_(std::move(upstream)) {}

  AnyTier upstream_;
};

}  // namespace refrain::detail
