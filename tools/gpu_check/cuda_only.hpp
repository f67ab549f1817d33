// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace gpu_check {

/// Work that is written down as a CUDA graph instead of being done, on the current stream, which
/// must not be the default one.
class Capture {
 public:
  Capture() = default;
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  virtual ~Capture() = default;
  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void launch() = 0;
};

/// What cannot be said without CUDA's own headers and libraries. It is in a module of its own,
/// loaded where there is a GPU: the program itself starts anywhere.
class CudaOnly {
 public:
  CudaOnly() = default;
  CudaOnly(const CudaOnly&) = delete;
  CudaOnly& operator=(const CudaOnly&) = delete;
  virtual ~CudaOnly() = default;
  [[nodiscard]] virtual std::unique_ptr<Capture> capture() const = 0;
  /// Records what the allocator does during `work` with refrain::cuda::MemoryHistory.
  virtual void record_memory(const std::function<void()>& work, const std::string& path) const = 0;
};

}  // namespace gpu_check

/// The module's one function.
extern "C" const gpu_check::CudaOnly* gpu_check_cuda_only();
