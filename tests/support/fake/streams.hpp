// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

/// The streams of the fake accelerator: queues whose work runs later.
namespace support {

inline constexpr c10::DeviceType kFake = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex kFakeDevices = 2;

/// The fake accelerator's device 0 or 1.
inline c10::Device fake_device(c10::DeviceIndex index) { return {kFake, index}; }

/// When the accelerator runs the work that it is given.
enum class Async {
  AtOnce,   ///< Before the call returns.
  Threads,  ///< Soon, on a thread for each stream.
  Lazy,     ///< As late as it can: only what somebody waits for.
};

namespace fake {

using Work = std::function<void()>;
using Seconds = std::chrono::duration<double>;

inline constexpr c10::StreamId kStreams = 1 + 8;  // the default one and a pool

inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local std::array<c10::StreamId, kFakeDevices> current_stream{};

class Queue;

/// What a stream had been given at some moment: the first `number` pieces of its work.
struct Ticket {
  Queue* queue = nullptr;
  std::uint64_t number = 0;
};

/// How long things take, and when they run.
struct Pace {
  Async mode = Async::AtOnce;
  Seconds kernel{0};
  double copy_rate = 0;  // bytes a second; 0: no time at all
  Seconds longest_delay{0};
};

/// A stream: its work runs in order, each piece once what it comes after is done.
class Queue {
 public:
  c10::Stream stream() const { return c10::Stream(c10::Stream::UNSAFE, fake_device(device_), id_); }

 private:
  friend class Machine;
  struct Piece {
    Work run;
    Seconds takes;
    Ticket after;
  };
  c10::DeviceIndex device_ = 0;
  c10::StreamId id_ = 0;
  std::deque<Piece> waiting_;
  std::uint64_t given_ = 0;
  std::uint64_t wanted_ = 0;  // the worker stops here
  std::uint64_t done_ = 0;
  std::condition_variable more_;
  bool has_worker_ = false;
};

/// Both devices' streams. A worker runs a stream's work as far as it is wanted: in the mode Threads
/// that is all of it, in the mode Lazy what somebody waits for.
///
/// Work never refers to tensors, only to their memory: freed memory that work still uses is to
/// show as wrong values.
class Machine {
 public:
  Queue& queue(c10::DeviceIndex device, c10::StreamId id) {
    return queues_.at(static_cast<std::size_t>(device)).at(static_cast<std::size_t>(id));
  }
  Queue& queue(const c10::Stream& stream) { return queue(stream.device_index(), stream.id()); }
  /// The calling thread's current stream of a device.
  Queue& current(c10::DeviceIndex device) {
    return queue(device, current_stream.at(static_cast<std::size_t>(device)));
  }

  Pace pace() {
    const std::lock_guard lock(mutex_);
    return pace_;
  }
  template <class Change>
  void set_pace(const Change& change) {
    const std::lock_guard lock(mutex_);
    change(pace_);
  }
  void seed_delays(std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    delays_.seed(seed);
  }

  /// Gives a stream work that takes a while, and then has its effect at once.
  void launch(Queue& queue, Seconds takes, Work run) {
    std::unique_lock lock(mutex_);
    if (pace_.longest_delay.count() > 0) takes += delay(queue);
    give(lock, queue, {std::move(run), takes, {}});
  }
  /// Gives a stream work that takes no time.
  void submit(Queue& queue, Work run) {
    std::unique_lock lock(mutex_);
    give(lock, queue, {std::move(run), Seconds(0), {}});
  }
  /// Lets a stream go no further until `ticket` is done.
  void block(Queue& queue, Ticket ticket) {
    std::unique_lock lock(mutex_);
    const bool ordered = ticket.queue == &queue || is_done(ticket);
    if (!ordered) give(lock, queue, {[] {}, Seconds(0), ticket});
  }

  Ticket last(Queue& queue) {
    const std::lock_guard lock(mutex_);
    return {&queue, queue.given_};
  }
  bool done(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    return is_done(ticket);
  }
  /// Waits, and throws what work on that device has thrown since the last wait.
  void wait_for(Ticket ticket) {
    std::unique_lock lock(mutex_);
    if (ticket.queue == nullptr) return;
    reach(lock, ticket);
    const auto device = static_cast<std::size_t>(ticket.queue->device_);
    if (const auto error = std::exchange(errors_.at(device), {})) std::rethrow_exception(error);
  }
  void wait_for(Queue& queue) { wait_for(last(queue)); }
  /// Side streams first: what lacks an order with the default stream comes out wrong.
  void wait_for_device(c10::DeviceIndex device) {
    for (auto id = kStreams; id-- > 0;) wait_for(queue(device, id));
  }

 private:
  friend Machine& machine();
  using Lock = std::unique_lock<std::mutex>;

  Machine() {
    for (c10::DeviceIndex device = 0; device < kFakeDevices; ++device) {
      for (c10::StreamId id = 0; id < kStreams; ++id) {
        queue(device, id).device_ = device;
        queue(device, id).id_ = id;
      }
    }
  }

  static bool is_done(Ticket ticket) {
    return ticket.queue == nullptr || ticket.queue->done_ >= ticket.number;
  }
  void want(Ticket ticket) {
    auto& queue = *ticket.queue;
    queue.wanted_ = std::max(queue.wanted_, ticket.number);
    queue.more_.notify_one();
    // Workers wait forever in the end, as the machine is never destroyed.
    if (!std::exchange(queue.has_worker_, true)) {
      std::thread([this, &queue] { work(queue); }).detach();
    }
  }
  void reach(Lock& lock, Ticket ticket) {
    if (is_done(ticket)) return;
    want(ticket);
    progress_.wait(lock, [&] { return is_done(ticket); });
  }

  Seconds delay(const Queue& queue) {
    const bool is_late = queue.id_ != 0 || delays_() % 8 == 0;
    return is_late ? pace_.longest_delay * std::uniform_real_distribution<>()(delays_) : Seconds(0);
  }

  void give(Lock& lock, Queue& queue, Queue::Piece piece) {
    if (pace_.mode == Async::AtOnce) {
      lock.unlock();
      return run(piece);
    }
    queue.waiting_.push_back(std::move(piece));
    ++queue.given_;
    if (pace_.mode == Async::Threads) want({&queue, queue.given_});
  }

  static void run(const Queue::Piece& piece) {
    if (piece.takes.count() > 0) std::this_thread::sleep_for(piece.takes);
    piece.run();
  }

  [[noreturn]] void work(Queue& queue) {
    at::init_num_threads();
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    Lock lock(mutex_);
    while (true) {
      queue.more_.wait(lock, [&] { return queue.done_ < queue.wanted_; });
      auto piece = std::move(queue.waiting_.front());
      queue.waiting_.pop_front();
      reach(lock, piece.after);
      lock.unlock();
      std::exception_ptr error;
      try {
        run(piece);
      } catch (...) {
        error = std::current_exception();
      }
      piece = {};
      lock.lock();
      auto& first = errors_.at(static_cast<std::size_t>(queue.device_));
      if (error && !first) first = error;
      ++queue.done_;
      progress_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable progress_;
  std::array<std::array<Queue, kStreams>, kFakeDevices> queues_;
  std::array<std::exception_ptr, kFakeDevices> errors_;
  Pace pace_;
  std::mt19937_64 delays_;
};

/// Never destroyed: tensors may be freed as late as at exit.
inline Machine& machine() {
  static auto* const one = new Machine;
  return *one;
}

}  // namespace fake

}  // namespace support
