// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <vector>

namespace refrain::detail {

/// Orders work on accelerator streams behind a replay: a replay runs on the stream of whoever asks
/// first, and nodes on other streams may use what it rebuilt. Elsewhere it does nothing.
class StreamOrder {
 public:
  /// Notes that what was just rebuilt on `device` comes from the current stream there.
  void mark(at::Device device) {
    if (!at::accelerator::isAccelerator(device.type()) || find(device) != nullptr) return;
    const c10::Stream stream = at::accelerator::getCurrentStream(device.index());
    c10::Event done(device.type());
    done.record(stream);
    marks_.push_back({stream, std::move(done)});
  }

  /// Makes the current stream of the tensor's device wait, and keeps its memory from being reused
  /// too early.
  void wait_for(const at::Tensor& tensor) const {
    if (marks_.empty()) return;
    const Mark* const mark = find(tensor.device());
    if (mark == nullptr) return;
    const c10::Stream stream = at::accelerator::getCurrentStream(tensor.device().index());
    if (stream == mark->stream) return;
    mark->done.block(stream);
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }

  void clear() { marks_.clear(); }

 private:
  struct Mark {
    c10::Stream stream;
    c10::Event done;
  };

  [[nodiscard]] const Mark* find(at::Device device) const {
    for (const Mark& mark : marks_) {
      if (mark.stream.device() == device) return &mark;
    }
    return nullptr;
  }

  std::vector<Mark> marks_;
};

}  // namespace refrain::detail
