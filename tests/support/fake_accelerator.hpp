// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

/// An accelerator with two devices that lives in host memory and finishes each piece of work before
/// it returns. Autograd treats it as any other: a thread a device in backward, streams, events, a
/// generator with seed and offset, an allocator with peak statistics.
///
/// Registering a backend concerns the whole process: use it in executables of their own.
namespace support {

inline constexpr c10::DeviceType kFake = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex kFakeDevices = 2;

/// The fake accelerator's device 0 or 1.
inline c10::Device fake_device(c10::DeviceIndex index) { return {kFake, index}; }

namespace fake {

inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local std::array<c10::StreamId, kFakeDevices> current_stream{};

struct Stat {
  std::atomic<std::int64_t> live{0};
  std::atomic<std::int64_t> peak{0};
};

/// Counts its bytes a device, and fills fresh ones with nonsense.
class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t count) override {
    const auto device = current_device;
    auto* const header =
        static_cast<Header*>(std::aligned_alloc(sizeof(Header), in_headers(count)));
    *header = {static_cast<std::int64_t>(count), device};
    auto& stat = stats_[static_cast<std::size_t>(device)];
    const auto live = stat.live += header->count;
    for (auto peak = stat.peak.load();
         peak < live && !stat.peak.compare_exchange_weak(peak, live);) {
    }
    void* const data = header + 1;
    std::memset(data, 0xCB, count);
    return {data, data, &free, fake_device(device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats out;
    const auto& stat = stats_[static_cast<std::size_t>(device)];
    out.allocated_bytes[0].current = stat.live;
    out.allocated_bytes[0].peak = stat.peak;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    auto& stat = stats_[static_cast<std::size_t>(device)];
    stat.peak = stat.live.load();
  }

 private:
  struct alignas(64) Header {
    std::int64_t count;
    c10::DeviceIndex device;
  };
  /// Bytes of a header and of as many more as hold `count` bytes.
  static std::size_t in_headers(std::size_t count) {
    return (count + 2 * sizeof(Header) - 1) / sizeof(Header) * sizeof(Header);
  }
  static void free(void* data) {
    auto* const header = static_cast<Header*>(data) - 1;
    stats_[static_cast<std::size_t>(header->device)].live -= header->count;
    std::free(header);
  }
  static inline std::array<Stat, kFakeDevices> stats_;
};

/// Draws from a hash of seed and offset, as accelerators' counting generators do.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index)
      : GeneratorImpl(fake_device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

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

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return fake_device(std::exchange(current_device, to.index()));
  }
  c10::Device getDevice() const override { return fake_device(current_device); }
  void setDevice(c10::Device to) const override { current_device = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { current_device = to.index(); }
  c10::Stream getStream(c10::Device on) const override {
    const auto device = on.has_index() ? on.index() : current_device;
    return c10::Stream(c10::Stream::UNSAFE, fake_device(device),
                       current_stream.at(static_cast<std::size_t>(device)));
  }
  c10::Stream getDefaultStream(c10::Device on) const override {
    return c10::Stream(c10::Stream::DEFAULT, on);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool) const override {
    static std::atomic<c10::StreamId> next{0};
    return c10::Stream(c10::Stream::UNSAFE, on, 1 + next++ % 8);
  }
  c10::Stream getNewStream(c10::Device on, int) const override {
    return getStreamFromGlobalPool(on, false);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const auto before = getStream(to.device());
    current_stream.at(static_cast<std::size_t>(to.device_index())) = to.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = const_cast<Guard*>(this);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kFakeDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex to) const override { current_device = to; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override {
    return std::exchange(current_device, to);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override {
    return to < 0 ? current_device : exchangeDevice(to);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index);
  }
};

/// The same memory as a CPU tensor.
inline at::Tensor on_host(const at::Tensor& t) {
  if (!t.is_privateuseone()) return t;
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(),
                       t.options().device(at::kCPU).requires_grad(false));
}

inline at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                                std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(fake_device(current_device)));
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(kFake), kKeys,
                                           dtype.value_or(c10::get_default_dtype_as_scalartype()));
}
inline at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device> device,
                        std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(fake_device(current_device)));
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, c10::GetAllocator(kFake), kKeys,
                                   dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
}
inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}
inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
inline at::Tensor view(const at::Tensor& t, c10::IntArrayRef size) {
  return at::native::view(t, size);
}
inline at::Tensor as_strided(const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride,
                             std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}
inline const at::Tensor& resize(const at::Tensor& t, c10::IntArrayRef size,
                                std::optional<at::MemoryFormat>) {
  auto* const impl = t.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto bytes = static_cast<std::size_t>(t.numel() * t.element_size());
  if (t.storage().nbytes() < bytes) {
    auto* const storage = t.storage().unsafeGetStorageImpl();
    const c10::DeviceGuard guard(t.device());
    storage->set_data_ptr_noswap(c10::GetAllocator(kFake)->allocate(bytes));
    storage->set_nbytes(bytes);
  }
  return t;
}
inline at::Scalar local_scalar(const at::Tensor& t) { return on_host(t).item(); }

inline at::Tensor& bernoulli(at::Tensor& t, double p, std::optional<at::Generator> own) {
  auto drawing = own ? *own : generator(t.device().index());
  auto* const draws = static_cast<Generator*>(drawing.unsafeGetGeneratorImpl());
  const std::lock_guard<std::mutex> lock(draws->mutex_);
  auto values = at::empty(t.sizes(), at::kDouble);
  for (auto *x = values.data_ptr<double>(), *end = x + values.numel(); x != end; ++x)
    *x = draws->next() < p ? 1 : 0;
  on_host(t).copy_(values);
  return t;
}
inline void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

}  // namespace fake

/// Registers the accelerator, once; call it first thing in `main`.
inline void install_fake_accelerator() {
  static const bool once = [] {
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(kFake, new fake::Memory, 1);
    static const c10::impl::DeviceGuardImplRegistrar guard(kFake, new fake::Guard);
    at::RegisterPrivateUse1HooksInterface(new fake::Hooks);
    static auto* const ops = new torch::Library(torch::Library::IMPL, "aten",
                                                c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    ops->impl("empty.memory_format", &fake::empty);
    ops->impl("empty_strided", &fake::empty_strided);
    ops->impl("_copy_from", &fake::copy_from);
    ops->impl("_copy_from_and_resize", &fake::copy_from_and_resize);
    ops->impl("view", &fake::view);
    ops->impl("as_strided", &fake::as_strided);
    ops->impl("resize_", &fake::resize);
    ops->impl("_local_scalar_dense", &fake::local_scalar);
    ops->impl("bernoulli_.float", &fake::bernoulli);
    static auto* const rest = new torch::Library(torch::Library::IMPL, "_",
                                                 c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    rest->fallback(torch::CppFunction::makeFromBoxedFunction<&fake::cpu_fallback>());
    static auto* const cast = new torch::Library(
        torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
    cast->fallback(torch::CppFunction::makeFallthrough());
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace support
