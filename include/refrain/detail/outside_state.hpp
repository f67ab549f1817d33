// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Puts back, for the length of a replay, what buffers held before the first run, and then what
/// they hold now. Where other replays may do the same, take a `Turn` first.
///
/// Contents are exchanged, not tensors: every alias sees them, as in the first run, and no pointer
/// changes under a reader on another thread. Versions end as they were. Cost: three copies of each
/// buffer that the region writes.
class OutsideStateScope {
 public:
  /// `graph_lives_on`: what is saved from these buffers may be asked for after the replay, and must
  /// be known for another state of them than any that is to come.
  explicit OutsideStateScope(std::vector<OutsideWrite>& writes, bool graph_lives_on = false) {
    now_.reserve(writes.size());
    const at::NoGradGuard no_grad;
    for (OutsideWrite& write : writes) {
      if (!write.memory_is_there()) continue;
      now_.push_back({write.live, write.live.clone(), VersionMark(write.live), write.counted});
    }
    try {
      if (graph_lives_on) {
        for (Now& now : now_) {
          if (now.counted) now.version.leap();
        }
      }
      // Newest first: a later entry may lie over an earlier one.
      for (auto write = writes.rbegin(); write != writes.rend(); ++write) {
        if (write->memory_is_there()) copy_contents(write->live, write->entry);
      }
    } catch (...) {
      put_back();
      throw;
    }
  }

  ~OutsideStateScope() { put_back(); }

  OutsideStateScope(const OutsideStateScope&) = delete;
  OutsideStateScope& operator=(const OutsideStateScope&) = delete;

 private:
  struct Now {
    at::Tensor live;
    at::Tensor contents;
    VersionMark version;
    bool counted;
  };

  static void copy_contents(at::Tensor& to, const at::Tensor& from) {
    if (to.is_cpu() && to.is_contiguous() && from.is_contiguous() && !to.is_conj() &&
        !to.is_neg()) {
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
      return;
    }
    const at::AutoDispatchBelowADInplaceOrView no_version_bump;
    to.copy_(from);
  }

  void put_back() {
    const at::NoGradGuard no_grad;
    for (Now& now : now_) {
      copy_contents(now.live, now.contents);
      now.version.rewind();
    }
  }

  std::vector<Now> now_;
};

/// Ends what a run did to tensors from outside: for good, and oldest contents last.
inline void undo(std::vector<OutsideWrite>& writes) {
  const at::NoGradGuard no_grad;
  for (auto write = writes.rbegin(); write != writes.rend(); ++write) {
    if (write->memory_is_there()) write->live.copy_(write->entry);
  }
}

}  // namespace refrain::detail
