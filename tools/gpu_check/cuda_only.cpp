// SPDX-License-Identifier: BSD-3-Clause
#include "cuda_only.hpp"

#include <refrain/cuda/memory_snapshot.hpp>

#include <ATen/cuda/CUDAGraph.h>

namespace {

class Graph final : public gpu_check::Capture {
 public:
  void begin() override { graph_.capture_begin(); }
  void end() override { graph_.capture_end(); }
  void launch() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

class Here final : public gpu_check::CudaOnly {
 public:
  [[nodiscard]] std::unique_ptr<gpu_check::Capture> capture() const override {
    return std::make_unique<Graph>();
  }
  void record_memory(const std::function<void()>& work, const std::string& path) const override {
    const refrain::cuda::MemoryHistory history;
    work();
    history.save(path);
  }
};

}  // namespace

const gpu_check::CudaOnly* gpu_check_cuda_only() {
  static const Here here;
  return &here;
}
