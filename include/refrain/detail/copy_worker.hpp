// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace refrain::detail {

/// A thread that does one piece of work after the other, in the order they come. It ends, all done,
/// with this object, which a piece of work may be the last to hold. Pieces do not throw.
class CopyWorker {
 public:
  CopyWorker() : state_(std::make_shared<State>()) {}
  CopyWorker(const CopyWorker&) = delete;
  CopyWorker& operator=(const CopyWorker&) = delete;
  ~CopyWorker() {
    if (!is_at_home()) {  // there is no thread here to wait for
      if (thread_.joinable()) thread_.detach();
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      state_->ends = true;
    }
    state_->comes.notify_one();
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();
    } else if (thread_.joinable()) {
      thread_.join();
    }
  }

  /// False in a process that was forked from the one that made it: threads do not come along.
  [[nodiscard]] bool is_at_home() const { return ::getpid() == process_; }

  void add(std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (!thread_.joinable()) thread_ = std::thread([state = state_] { run(*state); });
    state_->waiting.push_back(std::move(work));
    state_->comes.notify_one();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable comes;
    std::deque<std::function<void()>> waiting;
    bool ends = false;
  };

  static void run(State& state) {
    std::unique_lock<std::mutex> lock(state.mutex);
    while (true) {
      state.comes.wait(lock, [&state] { return state.ends || !state.waiting.empty(); });
      if (state.waiting.empty()) return;
      {
        const std::function<void()> work = std::move(state.waiting.front());
        state.waiting.pop_front();
        lock.unlock();
        work();
      }  // what it holds goes without the lock
      lock.lock();
    }
  }

  pid_t process_ = ::getpid();
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace refrain::detail
