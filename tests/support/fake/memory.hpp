// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake/streams.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

/// The fake accelerator's memory: caching allocators that follow CUDA's.
namespace support::fake {

inline constexpr int kNonsense = 0xCB;

class Pool;

/// A piece of memory, and the streams that use it.
struct Block {
  Pool* home;
  std::byte* data;
  std::size_t capacity;
  Queue* owner;  // null for host memory
  std::size_t count = 0;
  std::vector<Queue*> users{};  // streams besides the owner
  std::vector<Ticket> pending{};
};

/// Freed memory goes to whoever next asks for as much on the same stream, at once: stream order
/// keeps that right. If other streams have used it, only when they have done what they had been
/// given when it was freed. Fresh and freed memory is filled with nonsense. Nothing is ever
/// unmapped, hence a use after free gives wrong values and no crash.
class Pool {
 public:
  Block* take(std::size_t count, Queue* owner) {
    const std::lock_guard lock(mutex_);
    reclaim_finished();
    auto& free = free_[{owner, rounded(count)}];
    if (free.empty()) free.push_back(map(rounded(count), owner));
    auto* const block = free.back();
    free.pop_back();
    block->count = count;
    live_ += static_cast<std::int64_t>(count);
    peak_ = std::max(peak_, live_);
    return block;
  }

  static void give_back(void* block) {
    auto& pool = *static_cast<Block*>(block)->home;
    const std::lock_guard lock(pool.mutex_);
    pool.free(static_cast<Block*>(block));
  }

  /// Notes that a stream uses the block at this address, if there is one.
  void use(const void* address, Queue& user) {
    const std::lock_guard lock(mutex_);
    auto* const block = find(address);
    if (block == nullptr || block->owner == &user) return;
    if (std::ranges::find(block->users, &user) == block->users.end()) {
      block->users.push_back(&user);
    }
  }
  bool owns(const void* address) {
    const std::lock_guard lock(mutex_);
    return find(address) != nullptr;
  }

  std::int64_t live() {
    const std::lock_guard lock(mutex_);
    reclaim_finished();
    return live_;
  }
  std::int64_t peak() {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    reclaim_finished();
    peak_ = live_;
  }

 private:
  static constexpr std::size_t kGrain = 64;
  static std::size_t rounded(std::size_t count) {
    return std::max(kGrain, (count + kGrain - 1) / kGrain * kGrain);
  }

  Block* map(std::size_t capacity, Queue* owner) {
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(kGrain, capacity));
    std::memset(data, kNonsense, capacity);
    return blocks_[data] = new Block{this, data, capacity, owner};
  }
  Block* find(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    const auto after = blocks_.upper_bound(at);
    if (after == blocks_.begin()) return nullptr;
    auto* const block = std::prev(after)->second;
    return at < block->data + block->capacity ? block : nullptr;
  }

  void free(Block* block) {
    for (auto* user : std::exchange(block->users, {})) {
      block->pending.push_back(machine().last(*user));
    }
    freed_.push_back(block);
    reclaim_finished();
  }
  void reclaim_finished() {
    std::erase_if(freed_, [&](Block* block) {
      std::erase_if(block->pending, [](Ticket ticket) { return machine().done(ticket); });
      if (!block->pending.empty()) return false;
      live_ -= static_cast<std::int64_t>(block->count);
      const auto spoil = [data = block->data, capacity = block->capacity] {
        std::memset(data, kNonsense, capacity);
      };
      if (block->owner != nullptr) {
        // In stream order: what the stream was given before may still use the memory.
        machine().submit(*block->owner, spoil);
      } else {
        spoil();
      }
      free_[{block->owner, block->capacity}].push_back(block);
      return true;
    });
  }

  std::mutex mutex_;
  std::map<const std::byte*, Block*> blocks_;
  std::map<std::pair<Queue*, std::size_t>, std::vector<Block*>> free_;
  std::vector<Block*> freed_;
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

/// Never destroyed, as the machine.
inline Pool& device_pool(c10::DeviceIndex device) {
  static auto* const pools = new std::array<Pool, kFakeDevices>;
  return pools->at(static_cast<std::size_t>(device));
}
inline Pool& pinned_pool() {
  static auto* const pool = new Pool;
  return *pool;
}

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t count) override {
    const auto device = current_device;
    auto* const block = device_pool(device).take(count, &machine().current(device));
    return {block->data, block, &Pool::give_back, fake_device(device)};
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    machine().wait_for(machine().current(current_device));
    std::memcpy(to, from, count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    device_pool(data.device().index()).use(data.get(), machine().queue(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats out;
    out.allocated_bytes[0].current = device_pool(device).live();
    out.allocated_bytes[0].peak = device_pool(device).peak();
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { device_pool(device).reset_peak(); }
};

/// Gives a storage other memory with the same contents, as far as they fit.
inline void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  auto fresh = c10::GetAllocator(kFake)->allocate(bytes);
  machine().submit(machine().current(storage.device().index()),
                   [to = fresh.get(), from = storage.data(),
                    count = std::min(bytes, storage.nbytes())] { std::memcpy(to, from, count); });
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

/// Page-locked host memory. Copies note their streams on it, hence it may be freed while they run.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t count) override {
    auto* const block = pinned_pool().take(count, nullptr);
    return {block->data, block, &Pool::give_back, c10::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
};

}  // namespace support::fake
