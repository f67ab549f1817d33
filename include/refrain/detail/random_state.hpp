// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace refrain::detail {

/// The types of device that operators drew random numbers on. A body that seeds a generator may
/// leave it where it found it: then this alone tells.
class DrewOn {
 public:
  void add(at::DeviceType type) { types_ |= bit(type); }
  DrewOn& operator|=(DrewOn other) {
    types_ |= other.types_;
    return *this;
  }
  [[nodiscard]] bool contains(at::DeviceType type) const { return (types_ & bit(type)) != 0; }

 private:
  static std::uint64_t bit(at::DeviceType type) {
    return std::uint64_t{1} << static_cast<unsigned>(type);
  }
  std::uint64_t types_ = 0;
};

/// Where a random generator stands, kept by value.
///
/// Memory: 2.5 KB for a CPU generator, 16 bytes where the generator has a seed and an offset
/// (CUDA). Time: about 0.1 µs.
class RandomState {
 public:
  explicit RandomState(at::Generator generator)
      : generator_(std::move(generator)), state_(read()) {}

  /// Whether anybody drew from the generator, or set it, since.
  [[nodiscard]] bool moved() const { return !same(state_, read()); }

  /// Whether two generators of one kind stand at the same place.
  [[nodiscard]] bool equals(const RandomState& other) const { return same(state_, other.state_); }

  void restore() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    if (const auto* cpu = std::get_if<CpuState>(&state_)) {
      auto* const impl = at::check_generator<at::CPUGeneratorImpl>(generator_);
      impl->set_engine(cpu->engine);
      impl->set_next_float_normal_sample(cpu->next_float);
      impl->set_next_double_normal_sample(cpu->next_double);
    } else if (const auto* counter = std::get_if<SeedOffset>(&state_)) {
      generator_.set_current_seed(counter->first);  // zeroes the offset
      generator_.set_offset(counter->second);
    } else {
      generator_.set_state(std::get<at::Tensor>(state_));
    }
  }

  void seed(std::uint64_t value) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_current_seed(value);
  }

  /// Whether it is LibTorch's own of its device.
  [[nodiscard]] bool is_default() const {
    return generator_ == at::globalContext().defaultGenerator(generator_.device());
  }

  [[nodiscard]] at::DeviceType device_type() const { return generator_.device().type(); }
  [[nodiscard]] const void* generator() const { return generator_.unsafeGetGeneratorImpl(); }

  /// The same generator as it stands now.
  [[nodiscard]] RandomState again() const { return RandomState(generator_); }

 private:
  struct CpuState {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  using SeedOffset = std::pair<std::uint64_t, std::uint64_t>;
  using State = std::variant<CpuState, SeedOffset, at::Tensor>;

  [[nodiscard]] State read() const {
    at::Generator generator = generator_;
    const std::lock_guard<std::mutex> lock(generator.mutex());
    const auto type = generator.device().type();
    if (type == at::kCPU) {
      auto* const impl = at::check_generator<at::CPUGeneratorImpl>(generator);
      return CpuState{impl->engine(), impl->next_float_normal_sample(),
                      impl->next_double_normal_sample()};
    }
    // Under graph capture reading the offset fails loudly, where a state tensor would silently do
    // nothing.
    if (type == at::kCUDA || type == at::kHIP)
      return SeedOffset{generator.current_seed(), generator.get_offset()};
    return generator.get_state();
  }

  static bool same(const State& a, const State& b) {
    if (a.index() != b.index()) return false;
    if (const auto* cpu = std::get_if<CpuState>(&a)) return same_cpu(*cpu, std::get<CpuState>(b));
    if (const auto* counter = std::get_if<SeedOffset>(&a))
      return *counter == std::get<SeedOffset>(b);
    return at::equal(std::get<at::Tensor>(a), std::get<at::Tensor>(b));
  }

  static bool same_cpu(const CpuState& a, const CpuState& b) {
    const at::mt19937_data_pod& x = data_of(a.engine);
    const at::mt19937_data_pod& y = data_of(b.engine);
    return x.next_ == y.next_ && x.left_ == y.left_ && x.seed_ == y.seed_ &&
           x.seeded_ == y.seeded_ && x.state_ == y.state_ && a.next_float == b.next_float &&
           a.next_double == b.next_double;
  }

  // The engine's only member where it lies: `engine.data()` would copy 2.5 KB.
  static const at::mt19937_data_pod& data_of(const at::mt19937& engine) {
    static_assert(std::is_standard_layout_v<at::mt19937> &&
                  sizeof(at::mt19937) == sizeof(at::mt19937_data_pod));
    return reinterpret_cast<const at::mt19937_data_pod&>(engine);
  }

  at::Generator generator_;
  State state_;
};

/// What `ask` gives, which asks generators where they stand before `region` does as `verb` says. A
/// CUDA generator does not tell while a graph is captured: what a launch of the graph draws is
/// decided later.
template <class Ask>
[[nodiscard]] auto unless_capturing(std::string_view verb, std::string_view region,
                                    const Ask& ask) {
  try {
    return ask();
  } catch (const c10::Error& error) {
    if (error.msg().find("graph capture") == std::string::npos) throw;
    throw Error(fmt::format("cannot {} `{}` while a CUDA graph is captured: its random numbers "
                            "could not be drawn again.",
                            verb, region),
                "likely cause: the step is inside capture_begin() and capture_end().",
                "capture what is outside the region; or, if it draws no random numbers, give it "
                "Rng::Ignore.");
  }
}

}  // namespace refrain::detail
