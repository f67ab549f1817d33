// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/estimate/check.hpp>
#include <refrain/estimate/model.hpp>

#include <fmt/format.h>

#include <cstdint>

namespace refrain::estimate {

enum class Optimizer {
  Sgd,
  Momentum,
  Adam,
  Adam8bit,  ///< A byte for either moment, and a 4-byte scale for each 256 of them.
};

/// What is kept for each parameter, and how much of a device may be used.
///
///     estimate::Training training;                          // 2-byte parameters, Adam in 4 bytes
///     training.master = 4_B;                                // and a copy of the parameters in 4
///
/// Nothing is divided among data-parallel replicas.
struct Training {
  Bytes parameter = Bytes(2);
  Bytes gradient = Bytes(2);
  Bytes master = Bytes(0);  ///< Of a copy of each parameter that the optimizer works on.
  Optimizer optimizer = Optimizer::Adam;
  Bytes moment = Bytes(4);  ///< Of each of an optimizer's numbers, if it is not `Adam8bit`.
  /// Share of a device that the allocator cannot use, cut into pieces of wrong sizes.
  double fragmentation = 0.05;
};

/// Of one device.
struct StateBytes {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
  Bytes master;

  [[nodiscard]] Bytes total() const { return parameters + gradients + optimizer + master; }
};

namespace detail {

inline void check(const Training& training) {
  at_least_one("the parameter size", training.parameter.count());
  at_least_one("the gradient size", training.gradient.count());
  at_least_one("the size of an optimizer's number", training.moment.count());
  check_rate("the fragmentation", training.fragmentation);
  if (training.master < Bytes(0)) {
    throw OptionError(fmt::format("estimate: master weights of {}.", training.master),
                      "use 0 bytes for none.");
  }
}

[[nodiscard]] inline Bytes optimizer_bytes(std::int64_t count, const Training& training) {
  constexpr std::int64_t kBlock = 256;
  constexpr std::int64_t kScale = 4;
  switch (training.optimizer) {
    case Optimizer::Sgd:
      return Bytes(0);
    case Optimizer::Momentum:
      return count * training.moment;
    case Optimizer::Adam:
      return 2 * count * training.moment;
    case Optimizer::Adam8bit:
      return Bytes(2 * (count + (count + kBlock - 1) / kBlock * kScale));
  }
  return Bytes(0);
}

}  // namespace detail

[[nodiscard]] inline StateBytes state_bytes(const ModelShape& model, const Training& training,
                                            std::int64_t tensor_parallel = 1) {
  detail::check(training);
  const std::int64_t count = parameters(model, tensor_parallel);
  return {count * training.parameter, count * training.gradient,
          detail::optimizer_bytes(count, training), count * training.master};
}

/// What is left of a device after fragmentation. Throws `OptionError` for a device of no bytes.
[[nodiscard]] inline Bytes usable(Bytes device, const Training& training) {
  detail::check(training);
  detail::at_least_one("the device's memory", device.count());
  return Bytes(static_cast<std::int64_t>(static_cast<double>(device.count()) *
                                         (1 - training.fragmentation)));
}

}  // namespace refrain::estimate
