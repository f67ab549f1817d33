// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/memory_view.hpp>
#include <refrain/detail/side_streams.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Memory on the host that a tier lends: some bytes, and the copies from or to them that may still
/// go on.
struct HostRoom {
  at::Tensor bytes;
  std::vector<std::shared_ptr<c10::Event>> used_until;
};
/// Takes room back.
using GiveBack = std::function<void(HostRoom)>;

/// What is on its way out of a device. Its memory there is held until it has arrived, or until too
/// much is on its way: then the device waits for the oldest.
class OnTheWayOut {
 public:
  struct One {
    std::mutex mutex;
    at::Tensor source;   ///< Until it is let go.
    c10::Stream stream;  ///< The one that its memory belongs to.
    std::shared_ptr<c10::Event> arrived;
    std::int64_t bytes = 0;

    One(at::Tensor what, c10::Stream whose) : source(std::move(what)), stream(whose) {}

    /// Nobody will ask for it any more: its memory goes back to the stream it belongs to, which
    /// may use it again at once, behind the copy.
    void let_go() {
      at::Tensor goes;  // destroyed after the lock
      const std::lock_guard<std::mutex> lock(mutex);
      if (source.defined() && !arrived->query()) arrived->block(stream);
      std::swap(goes, source);
    }

    /// The memory, if it is still on the device.
    [[nodiscard]] at::Tensor still_there() {
      const std::lock_guard<std::mutex> lock(mutex);
      return source;
    }
  };

  OnTheWayOut() = default;
  OnTheWayOut(const OnTheWayOut&) = delete;
  OnTheWayOut& operator=(const OnTheWayOut&) = delete;
  ~OnTheWayOut() = default;

  /// Copies `source` to `room` on the side stream of its device. At most `most` bytes are on their
  /// way then, beside it.
  std::shared_ptr<One> send(const at::Tensor& source, const HostRoom& room, Bytes most) {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (!all_.empty() && (bytes_ > most.count() || all_.front()->arrived->query()))
      let_go_of_first();
    const c10::Stream& out = SideStreams::of(source.device()).out;
    auto one = std::make_shared<One>(source, current_stream(source.device()));
    event_on(one->stream)->block(out);  // filled
    for (const auto& used : room.used_until) used->block(out);
    {
      const c10::StreamGuard beside(out);
      room.bytes.copy_(source, /*non_blocking=*/true);
    }
    one->arrived = event_on(out);
    one->bytes = source.numel();
    bytes_ += one->bytes;
    all_.push_back(one);
    return one;
  }

 private:
  void let_go_of_first() {
    bytes_ -= all_.front()->bytes;
    all_.front()->let_go();
    all_.pop_front();
  }

  std::mutex mutex_;
  std::int64_t bytes_ = 0;
  std::deque<std::shared_ptr<One>> all_;
};

/// Memory of an accelerator that waits on the host. Both ways are copies beside the work of the
/// device, ordered by events; the thread never waits.
class HostItem final : public TierItem {
 public:
  HostItem(const at::Tensor& contents, HostRoom room, OnTheWayOut& out, Bytes on_the_way,
           GiveBack give_back)
      : dtype_(contents.dtype()),
        device_(contents.device()),
        room_(std::move(room)),
        give_back_(std::move(give_back)) {
    try {
      out_ = out.send(as_bytes(contents), room_, on_the_way);
    } catch (...) {
      give_back_(std::move(room_));
      throw;
    }
  }

  ~HostItem() override {
    // A device that has failed, or is gone at the process's end, has no order to keep.
    try {
      // Memory that nobody asked for is about to be used again by the stream it belongs to.
      if (coming_.defined()) arrives_->block(*coming_on_);
      out_->let_go();
      room_.used_until = {arrives_ != nullptr ? arrives_ : out_->arrived};
      give_back_(std::move(room_));
    } catch (const std::exception&) {
    }
  }

  void fetch() override {
    if (!coming_.defined() && !out_->still_there().defined()) start();
  }

  at::Tensor get() override {
    if (at::Tensor there = out_->still_there(); there.defined() && !coming_.defined())
      return flat_as(there, dtype_);
    if (!coming_.defined()) start();
    const c10::Stream here = current_stream(device_);
    arrives_->block(here);
    if (here != *coming_on_) {
      const c10::impl::VirtualGuardImpl device(device_.type());
      device.recordDataPtrOnStream(coming_.storage().data_ptr(), here);
    }
    return flat_as(std::exchange(coming_, {}), dtype_);
  }

 private:
  /// The memory is the computing stream's: what that does now may still use it.
  void start() {
    const c10::Stream& back = SideStreams::of(device_).back;
    coming_on_ = current_stream(device_);
    at::Tensor coming = at::empty({room_.bytes.numel()}, at::dtype(at::kByte).device(device_));
    event_on(*coming_on_)->block(back);
    out_->arrived->block(back);
    {
      const c10::StreamGuard beside(back);
      coming.copy_(room_.bytes, /*non_blocking=*/true);
    }
    arrives_ = event_on(back);
    coming_ = std::move(coming);
  }

  caffe2::TypeMeta dtype_;
  c10::Device device_;
  HostRoom room_;
  GiveBack give_back_;
  std::shared_ptr<OnTheWayOut::One> out_;
  at::Tensor coming_;
  std::optional<c10::Stream> coming_on_;  ///< Whose memory it is.
  std::shared_ptr<c10::Event> arrives_;
};

}  // namespace refrain::detail
