// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/moved_storage.hpp>
#include <refrain/detail/tensor_facts.hpp>
#include <refrain/tier.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// What one thread's forward keeps in tiers, in the order in which it went there: backward asks for
/// it in the opposite order, so what was moved just before is fetched ahead.
class MoveLine {
 public:
  /// Of the calling thread. What it moved holds on to it.
  [[nodiscard]] static const std::shared_ptr<MoveLine>& current() {
    static thread_local const auto line = std::make_shared<MoveLine>();
    return line;
  }

  /// The memory of `tensor`, with one more reader.
  std::shared_ptr<MovedStorage> hold(const at::Tensor& tensor, MovedStorage::Range range,
                                     const AnyTier& tier, const std::string& region) {
    const void* const address = storage_of(tensor);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto waits = waiting_.rbegin(); waits != waiting_.rend(); ++waits) {
      if (waits->storage != address) continue;
      auto known = waits->memory.lock();
      if (known != nullptr && known->goes_to(tier) && known->add_reader(tensor, range))
        return known;
    }
    auto memory = std::make_shared<MovedStorage>(tensor, tier, region);
    memory->add_reader(tensor, range);
    waiting_.push_back({address, memory});
    return memory;
  }

  /// Moves all that nobody else holds by now.
  void move_what_waits() { move_some(static_cast<std::size_t>(-1)); }

  /// The same for a few of them in turn: cheap enough to be called for each tensor that is saved.
  void move_a_few() { move_some(kAFew); }

  /// Starts the way back of what was moved just before: as much again, and at least one.
  void fetch_before(const MovedStorage& memory) {
    std::vector<std::shared_ptr<MovedStorage>> next;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::int64_t bytes = 0;
      auto before = std::lower_bound(
          moved_.begin(), moved_.end(), memory.number,
          [](const Moved& moved, std::uint64_t number) { return moved.number < number; });
      while (before != moved_.begin()) {
        auto alive = (--before)->memory.lock();
        if (alive == nullptr) continue;
        bytes += alive->bytes();
        if (!next.empty() && bytes > memory.bytes()) break;
        next.push_back(std::move(alive));
      }
    }
    for (const auto& one : next) {
      try {
        one->fetch();
      } catch (const std::exception&) {  // whoever asks for it is told
        return;
      }
    }
  }

 private:
  static constexpr std::size_t kAFew = 16;

  struct Waiting {
    const void* storage;
    std::weak_ptr<MovedStorage> memory;
  };

  struct Moved {
    std::uint64_t number;
    std::weak_ptr<MovedStorage> memory;
  };

  void move_some(std::size_t most) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t n = std::min(most, waiting_.size()); n > 0 && !waiting_.empty(); --n) {
      if (next_ >= waiting_.size()) next_ = 0;
      const auto memory = waiting_[next_].memory.lock();
      if (memory == nullptr || move(memory) != MovedStorage::Outcome::Waits) {
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(next_));
      } else {
        ++next_;
      }
    }
  }

  MovedStorage::Outcome move(const std::shared_ptr<MovedStorage>& memory) {
    const MovedStorage::Outcome outcome = memory->try_move();
    if (outcome != MovedStorage::Outcome::Moved) return outcome;
    if (moved_.size() >= most_moved_) {
      std::erase_if(moved_, [](const Moved& moved) { return moved.memory.expired(); });
      most_moved_ = 2 * moved_.size() + kAFew;
    }
    memory->number = next_number_++;
    moved_.push_back({memory->number, memory});
    return outcome;
  }

  std::mutex mutex_;
  std::vector<Waiting> waiting_;
  std::size_t next_ = 0;            ///< Whose turn it is.
  std::vector<Moved> moved_;        ///< In the order in which it went.
  std::size_t most_moved_ = kAFew;  ///< Then what is gone is looked for.
  std::uint64_t next_number_ = 0;
};

}  // namespace refrain::detail
