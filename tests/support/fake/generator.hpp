// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake/streams.hpp"

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace support::fake {

/// Draws from a hash of seed and offset, as accelerators' counting generators do.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index)
      : GeneratorImpl(fake_device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  bool capturing = false;  ///< As if a graph were captured on the device.

  double next() {
    auto x = seed_ * 0x9E3779B97F4A7C15ULL + 4 * ++offset_;
    for (int round = 0; round < 3; ++round) x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ULL;
    return static_cast<double>(x >> 11) * 0x1.0p-53;
  }
  void set_current_seed(std::uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl& state) override {
    const auto* const words = static_cast<const std::uint64_t*>(state.data());
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    // LibTorch's words on CUDA.
    TORCH_CHECK(!capturing, "Cannot call CUDAGeneratorImpl::get_offset during CUDA graph capture.");
    auto state = at::empty({16}, at::kByte);
    const std::uint64_t words[] = {seed_, offset_};
    std::memcpy(state.data_ptr(), words, sizeof words);
    return state.getIntrusivePtr();
  }

 private:
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  std::uint64_t seed_ = 1;
  std::uint64_t offset_ = 0;
};

inline at::Generator& generator(c10::DeviceIndex index) {
  static std::array<at::Generator, kFakeDevices> generators = {at::make_generator<Generator>(0),
                                                               at::make_generator<Generator>(1)};
  return generators.at(static_cast<std::size_t>(index < 0 ? current_device : index));
}

}  // namespace support::fake
