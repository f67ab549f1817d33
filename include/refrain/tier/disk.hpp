// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/disk_store.hpp>
#include <refrain/detail/host_item.hpp>
#include <refrain/detail/host_memory.hpp>
#include <refrain/detail/memory_view.hpp>
#include <refrain/detail/side_streams.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace refrain::tier {

/// How a disk is used. `disk(folder, {.cap = 200_GiB})`.
struct DiskOptions {
  /// Bytes that the file may take.
  Bytes cap = kNoLimit;
  /// Bytes that may wait for being written, and stay in memory until then, beside the newest.
  Bytes on_the_way{std::int64_t{64} << 20};
};

/// A folder on a disk: tensors of the host wait there for backward, and those of an accelerator, by
/// way of the host's pinned memory.
///
///     auto waits = refrain::tier::disk("/scratch", {.cap = 200_GiB});
///
/// One file for each tier made, without a name: nothing is left of it when the process ends, be it
/// by a crash. One thread writes and one reads beside the work that goes on; at most
/// `on_the_way` bytes wait for being written. The file is used past the system's cache where the
/// file system can do that.
///
/// Memory: what is on its way, and 8 MiB a thread. Errors: `TierError` if the folder cannot be
/// written to, at the cap, and where the disk is full or fails: a tensor that could not be written
/// stays in memory, and the next one that is taken tells, of whichever region that is.
class Disk {
 public:
  explicit Disk(std::string folder, const DiskOptions& options = {})
      : store_(
            std::make_shared<detail::DiskStore>(checked(std::move(folder), options), options.cap)),
        staged_(std::make_shared<detail::HostStore>()),
        on_the_way_(detail::checked_window("disk", options.on_the_way)) {}

  [[nodiscard]] std::unique_ptr<TierItem> take(const at::Tensor& contents) const {
    store_->require_own_process();
    store_->begin_writing(static_cast<std::int64_t>(contents.nbytes()), on_the_way_);
    try {
      return std::make_unique<Item>(contents, store_, staged_, on_the_way_);
    } catch (...) {
      store_->end_writing(static_cast<std::int64_t>(contents.nbytes()), nullptr);
      throw;
    }
  }
  [[nodiscard]] Bytes on_the_way() const { return on_the_way_; }
  [[nodiscard]] Bytes capacity() const { return store_->file.cap(); }
  [[nodiscard]] Disk with_on_the_way(Bytes most) const {
    Disk other = *this;
    other.on_the_way_ = most;
    return other;
  }
  [[nodiscard]] std::string describe() const {
    return fmt::format("disk(\"{}\")", store_->file.folder());
  }

  /// Since the tier was made: what wears a disk.
  [[nodiscard]] Bytes bytes_written() const { return store_->file.written(); }
  [[nodiscard]] Bytes bytes_read() const { return store_->file.bytes_read(); }

 private:
  static std::string checked(std::string folder, const DiskOptions& options) {
    if (folder.empty())
      throw OptionError("disk(\"\"): no folder is named.", "the current one is \".\".");
    if (options.cap.count() < 0) {
      throw OptionError(fmt::format("disk(\"{}\"): its cap is {}.", folder, options.cap),
                        "say how much it may take.");
    }
    return folder;
  }

  /// The host's copy of an accelerator's memory, until it is written.
  class Staged {
   public:
    Staged(std::shared_ptr<detail::HostStore> store, const at::Tensor& bytes, Bytes on_the_way)
        : store_(std::move(store)), room_(store_->memory.take(bytes.numel())) {
      arrives_ = store_->out.send(bytes, room_, on_the_way)->arrived;
    }
    Staged(const Staged&) = delete;
    Staged& operator=(const Staged&) = delete;
    ~Staged() {
      room_.used_until = {arrives_};
      store_->memory.give_back(std::move(room_));
    }
    [[nodiscard]] const at::Tensor& bytes() const { return room_.bytes; }
    [[nodiscard]] const std::shared_ptr<c10::Event>& arrives() const { return arrives_; }

   private:
    std::shared_ptr<detail::HostStore> store_;
    detail::HostRoom room_;
    std::shared_ptr<c10::Event> arrives_;
  };

  class Item final : public TierItem {
   public:
    Item(const at::Tensor& contents, std::shared_ptr<detail::DiskStore> store,
         const std::shared_ptr<detail::HostStore>& stage, Bytes on_the_way)
        : dtype_(contents.dtype()), device_(contents.device()), store_(std::move(store)) {
      const at::Tensor bytes = detail::as_bytes(contents);
      if (device_.is_cpu()) {
        spilled_ = std::make_shared<detail::Spilled>(store_, bytes, nullptr);
      } else {
        auto staged = std::make_shared<Staged>(stage, bytes, on_the_way);
        arrives_ = staged->arrives();
        spilled_ = std::make_shared<detail::Spilled>(store_, staged->bytes(), staged);
      }
      store_->writer.add(
          [spilled = spilled_, arrives = arrives_] { spilled->write(arrives.get()); });
    }
    ~Item() override { spilled_->let_go(); }

    void fetch() override {
      store_->require_own_process();
      if (!spilled_->begin_reading()) return;
      try {
        store_->reader.add([spilled = spilled_] { spilled->read(); });
      } catch (...) {  // no thread could be started
        spilled_->end_reading();
        throw;
      }
    }
    at::Tensor get() override {
      at::Tensor bytes;
      std::shared_ptr<void> keeps;  // until they have been copied
      while (!bytes.defined()) {    // it may have left memory since it was looked for there
        fetch();
        std::tie(bytes, keeps) = spilled_->get();
      }
      if (device_.is_cpu()) return detail::flat_as(bytes, dtype_);
      arrives_->block(detail::current_stream(device_));
      at::Tensor there = at::empty({bytes.numel()}, at::dtype(at::kByte).device(device_));
      there.copy_(bytes);
      return detail::flat_as(there, dtype_);
    }

   private:
    caffe2::TypeMeta dtype_;
    c10::Device device_;
    std::shared_ptr<detail::DiskStore> store_;
    std::shared_ptr<c10::Event> arrives_;
    std::shared_ptr<detail::Spilled> spilled_;
  };

  std::shared_ptr<detail::DiskStore> store_;
  std::shared_ptr<detail::HostStore> staged_;
  Bytes on_the_way_;
};

static_assert(StorageTier<Disk>, "a disk is a storage tier");

[[nodiscard]] inline Disk disk(std::string folder, const DiskOptions& options = {}) {
  return Disk(std::move(folder), options);
}

}  // namespace refrain::tier
