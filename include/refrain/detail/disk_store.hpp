// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/copy_worker.hpp>
#include <refrain/detail/memory_view.hpp>
#include <refrain/detail/spill_file.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace refrain::detail {

/// A spill file and those who write it and read it, one thread each.
struct DiskStore {
  SpillFile file;
  std::mutex mutex;
  std::condition_variable less_on_the_way;
  std::int64_t on_the_way = 0;
  std::exception_ptr failed;  ///< A write did, and nobody was told yet.
  CopyWorker writer;          // last: they end first
  CopyWorker reader;

  DiskStore(std::string folder, Bytes cap) : file(std::move(folder), cap) {}

  /// A process that was forked shares the file with the one that made it, but neither its threads
  /// nor who has which place. Throws `TierError` there.
  void require_own_process() const {
    if (writer.is_at_home()) return;
    throw TierError(
        fmt::format("disk(\"{}\") was made before this process was forked.", file.folder()),
        "make a tier of its own in each process.");
  }

  /// Waits until no more than `most` bytes are on the way.
  void begin_writing(std::int64_t count, Bytes most) {
    std::unique_lock<std::mutex> lock(mutex);
    less_on_the_way.wait(lock, [&] { return on_the_way <= most.count(); });
    if (failed) std::rethrow_exception(std::exchange(failed, nullptr));
    on_the_way += count;
  }
  void end_writing(std::int64_t count, std::exception_ptr error) {
    const std::lock_guard<std::mutex> lock(mutex);
    on_the_way -= count;
    if (error) failed = std::move(error);
    less_on_the_way.notify_all();
  }
};

/// One tensor's memory in the file. The thread that writes it and the one that reads it share it
/// with the item.
class Spilled {
 public:
  /// `keeps`: what the bytes lie in.
  Spilled(std::shared_ptr<DiskStore> store, at::Tensor bytes, std::shared_ptr<void> keeps)
      : store_(std::move(store)),
        count_(bytes.numel()),
        bytes_(std::move(bytes)),
        keeps_(std::move(keeps)),
        place_(store_->file.take(count_)) {}
  Spilled(const Spilled&) = delete;
  Spilled& operator=(const Spilled&) = delete;
  ~Spilled() { store_->file.give_back(place_, count_); }

  /// On the writer's thread, once `filled`, if it is not null, has come. What cannot be written
  /// stays where it is.
  void write(const c10::Event* filled) {
    std::exception_ptr error;
    if (at::Tensor bytes = still_there(); bytes.defined()) {
      try {
        if (filled != nullptr) filled->synchronize();
        store_->file.write(place_, bytes.const_data_ptr(), count_);
        bytes.reset();
        let_go();
      } catch (...) {
        error = std::current_exception();
      }
    }
    store_->end_writing(count_, std::move(error));
  }

  /// Of the bytes in memory.
  void let_go() {
    at::Tensor bytes;  // destroyed after the lock
    std::shared_ptr<void> keeps;
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(bytes, bytes_);
    std::swap(keeps, keeps_);
  }

  /// On the reader's thread.
  void read() {
    at::Tensor bytes;
    std::exception_ptr error;
    try {
      const at::Tensor there = still_there();
      bytes = there.defined() ? there : new_pages();
      if (!there.defined()) store_->file.read(place_, bytes.data_ptr(), count_);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    coming_ = false;
    back_ = std::move(bytes);
    failed_ = std::move(error);
    came_.notify_all();
  }

  /// The memory, if it has not been written yet.
  [[nodiscard]] at::Tensor still_there() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }

  /// True for the one who is to have it read.
  [[nodiscard]] bool begin_reading() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (coming_ || back_.defined() || bytes_.defined()) return false;
    failed_ = nullptr;
    coming_ = true;
    return true;
  }

  /// Where nobody reads it after all.
  void end_reading() {
    const std::lock_guard<std::mutex> lock(mutex_);
    coming_ = false;
    came_.notify_all();
  }

  /// With what it lies in. Waits for what is being read; what is still in memory comes at once. Not
  /// defined if it is neither.
  [[nodiscard]] std::pair<at::Tensor, std::shared_ptr<void>> get() {
    std::unique_lock<std::mutex> lock(mutex_);
    came_.wait(lock, [this] { return !coming_; });
    if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
    if (back_.defined()) return {std::exchange(back_, {}), nullptr};
    return {bytes_, keeps_};
  }

 private:
  /// Memory that the file can be read into, without another copy.
  [[nodiscard]] at::Tensor new_pages() const {
    const at::Tensor all =
        at::empty({SpillFile::padded(count_) + SpillFile::kPage}, at::dtype(at::kByte));
    const auto past = reinterpret_cast<std::uintptr_t>(all.data_ptr()) % SpillFile::kPage;
    const std::int64_t begin = past == 0 ? 0 : SpillFile::kPage - static_cast<std::int64_t>(past);
    return tensor_in(all.storage(), all.key_set(), all.dtype(), {count_}, {1}, begin);
  }

  std::shared_ptr<DiskStore> store_;
  std::int64_t count_;
  std::mutex mutex_;
  std::condition_variable came_;
  at::Tensor bytes_;  ///< Until they are written.
  std::shared_ptr<void> keeps_;
  bool coming_ = false;
  at::Tensor back_;
  std::exception_ptr failed_;
  std::int64_t place_;
};

}  // namespace refrain::detail
