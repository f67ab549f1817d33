// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/backend_tap.hpp>
#include <refrain/detail/memory_view.hpp>
#include <refrain/detail/op_tap.hpp>
#include <refrain/detail/saved_hooks.hpp>
#include <refrain/detail/short_what.hpp>
#include <refrain/detail/step_recorder.hpp>
#include <refrain/error.hpp>
#include <refrain/tier.hpp>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Memory that somebody will read in backward, perhaps through several tensors: where it was while
/// others hold it too, then in a tier. So what is alive anyway never moves, and each storage at
/// most once.
///
/// Moving only what nobody else holds also means that nobody is about to write it, and that no new
/// view of it can come: what moves is what all its readers will ever see of it.
class MovedStorage {
 public:
  /// Some of a storage, in bytes.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    [[nodiscard]] std::int64_t bytes() const { return end - begin; }
  };
  /// Memory as its readers get it; `begin`: where in the original it begins, in bytes.
  struct Lent {
    c10::Storage storage;
    std::int64_t begin = 0;
  };

  MovedStorage(const at::Tensor& tensor, AnyTier tier, std::string region)
      : tier_(std::move(tier)),
        region_(std::move(region)),
        keys_(tensor.key_set()),
        dtype_(tensor.dtype()),
        device_(tensor.device()),
        storage_(tensor.storage()) {}
  MovedStorage(const MovedStorage&) = delete;
  MovedStorage& operator=(const MovedStorage&) = delete;

  /// One more reader, of this range. False if the memory has gone by now.
  bool add_reader(const at::Tensor& tensor, Range range) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (item_ != nullptr ||
        storage_.unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl())
      return false;
    range_ = readers_++ == 0
                 ? range
                 : Range{std::min(range_.begin, range.begin), std::max(range_.end, range.end)};
    if (tensor.dtype() != dtype_) dtype_ = caffe2::TypeMeta::Make<std::uint8_t>();
    note_stream(tensor.device());
    return true;
  }

  /// `had`: which of its returns the reader has seen.
  void remove_reader(int had) {
    at::Tensor goes;  // destroyed after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    --readers_;
    if (had == returns_) --asked_;
    goes = let_go_if_all_have_it();
  }

  enum class Outcome { Waits, Moved, Stays };

  /// Moves it if nobody else holds it now. Throws `TierError`: then it stays where it is.
  Outcome try_move() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stays_ || item_ != nullptr) return Outcome::Stays;
    if (storage_.use_count() != 1) return Outcome::Waits;
    // What other threads wrote before they let go of it is seen.
    std::atomic_thread_fence(std::memory_order_acquire);
    stays_ = true;  // for good, if the tier fails
    if (static_cast<std::int64_t>(storage_.nbytes()) < range_.end)
      return Outcome::Stays;  // resized
    range_.begin -= range_.begin % kAlignment;
    const auto size = static_cast<std::int64_t>(dtype_.itemsize());
    if (range_.end % size != 0) dtype_ = caffe2::TypeMeta::Make<std::uint8_t>();
    at::Tensor contents = flat();
    const Unseen unseen;
    const OnItsStream stream(streams_);
    const double began = step_ == nullptr ? 0 : step_->moment();
    try {
      storage_ = {};
      item_ = tier_.take(contents);
    } catch (const std::exception& error) {
      storage_ = contents.storage();
      throw TierError(short_what(error),
                      fmt::format("it was asked to take {} bytes of {} that `{}` saved; they stay "
                                  "where they are.",
                                  range_.bytes(), dtype_.name(), region_));
    } catch (...) {
      storage_ = contents.storage();
      throw TierError(
          fmt::format("{} threw something that is not a std::exception.", tier_.describe()));
    }
    if (item_ == nullptr) {
      storage_ = contents.storage();
      return Outcome::Stays;
    }
    stays_ = false;
    contents.reset();
    if (step_ != nullptr) {
      told_ = step_->moved(
          {region_, tier_.describe(), Bytes(range_.bytes()), {began, step_->moment()}, {}});
    }
    return Outcome::Moved;
  }

  /// Starts the way back.
  void fetch() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (item_ == nullptr || fetching_ || (back_ && !back_->expired())) return;
    fetching_ = true;
    const Unseen unseen;
    item_->fetch();
  }

  /// For one of the readers; notes in `had` which return it has seen. Throws `TierError` if the
  /// tier cannot give it back.
  Lent get(int& had) {
    at::Tensor goes;  // destroyed after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    if (item_ == nullptr) return {storage_, 0};
    if (auto again = back_ ? back_->lock() : nullptr) {
      Lent lent{c10::Storage(std::move(again)), begin_};
      order_behind_return(lent.storage);
      if (std::exchange(had, returns_) != returns_) ++asked_;
      goes = let_go_if_all_have_it();
      return lent;
    }
    fetching_ = false;
    at::Tensor contents;
    const Unseen unseen;
    const double began = step_ == nullptr ? 0 : step_->moment();
    try {
      contents = item_->get();
    } catch (const std::exception& error) {
      throw TierError(short_what(error),
                      fmt::format("asked for {} bytes that `{}` saved.", range_.bytes(), region_));
    }
    check_return(contents);
    note_return(contents.device());
    if (step_ != nullptr) step_->came_back(told_, {began, step_->moment()});
    begin_ =
        range_.begin - contents.storage_offset() * static_cast<std::int64_t>(contents.itemsize());
    back_ = contents.storage().getWeakStorageImpl();
    Lent lent{contents.storage(), begin_};
    held_ = std::move(contents);
    had = ++returns_;
    asked_ = 1;
    goes = let_go_if_all_have_it();
    return lent;
  }

  [[nodiscard]] std::int64_t bytes() const { return range_.bytes(); }

  /// Whether it goes, or went, to a tier like that.
  [[nodiscard]] bool goes_to(const AnyTier& tier) const {
    return tier_.describe() == tier.describe();
  }

  /// Its number among what its line has moved: beyond all of it, if it has not been.
  std::uint64_t number = std::numeric_limits<std::uint64_t>::max();

 private:
  /// What tiers do is their own: nobody who watches this thread sees it.
  class Unseen {
    OpTapScope operators_{nullptr};
    BackendTap::Scope backend_{nullptr};
    HookScope hooks_{nullptr};
    at::AutoDispatchBelowADInplaceOrView below_;
  };

  /// What LibTorch's kernels may go by, and a multiple of every element.
  static constexpr std::int64_t kAlignment = 64;

  /// Makes a stream current on which all is ordered that filled the memory.
  class OnItsStream {
   public:
    explicit OnItsStream(const std::vector<c10::Stream>& streams) {
      if (streams.empty()) return;
      for (std::size_t i = 0; i + 1 < streams.size(); ++i) {
        c10::Event filled(streams[i].device_type());
        filled.record(streams[i]);
        filled.block(streams.back());
      }
      guard_.emplace(streams.back());
    }

   private:
    std::optional<c10::StreamGuard> guard_;
  };

  void note_stream(at::Device device) {
    if (device.is_cpu()) return;
    const c10::Stream stream = at::accelerator::getCurrentStream(device.index());
    std::erase(streams_, stream);
    streams_.push_back(stream);
  }

  [[nodiscard]] at::Tensor flat() {
    const auto size = static_cast<std::int64_t>(dtype_.itemsize());
    const std::int64_t count = range_.bytes() / size;
    const c10::DispatchKeySet plain =
        keys_ - c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    return tensor_in(storage_, plain, dtype_, {count}, {1}, range_.begin / size);
  }

  void check_return(const at::Tensor& contents) const {
    const std::int64_t count = range_.bytes() / static_cast<std::int64_t>(dtype_.itemsize());
    if (contents.defined() && contents.dtype() == dtype_ && contents.numel() == count &&
        contents.dim() == 1 && contents.is_contiguous() && contents.device() == device_)
      return;
    throw TierError(fmt::format("{} gave back something else than it took.", tier_.describe()),
                    fmt::format("it took {} flat elements of {} on {}, saved by `{}`.", count,
                                dtype_.name(), device_.str(), region_));
  }

  void note_return(at::Device device) {
    if (device.is_cpu()) return;
    returned_on_ = at::accelerator::getCurrentStream(device.index());
    returned_ = std::make_shared<c10::Event>(device.type());
    returned_->record(*returned_on_);
  }
  /// The return was ordered behind its copy for the stream that asked first.
  void order_behind_return(const c10::Storage& storage) const {
    if (returned_ == nullptr) return;
    const c10::Stream here = at::accelerator::getCurrentStream(device_.index());
    if (here == *returned_on_) return;
    returned_->block(here);
    const c10::impl::VirtualGuardImpl device(device_.type());
    device.recordDataPtrOnStream(storage.data_ptr(), here);
  }

  /// Several readers share what came back, until each has asked for it.
  [[nodiscard]] at::Tensor let_go_if_all_have_it() {
    return asked_ >= readers_ ? std::exchange(held_, {}) : at::Tensor();
  }

  std::mutex mutex_;
  AnyTier tier_;
  std::string region_;                                            ///< Who saved it first.
  std::shared_ptr<StepRecorder> step_ = StepRecorder::current();  ///< Null: nobody records it.
  std::int64_t told_ = -1;                                        ///< Its place there.
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  at::Device device_;
  Range range_;
  std::vector<c10::Stream> streams_;  ///< Those current when it was saved, the last one last.
  int readers_ = 0;
  c10::Storage storage_;  ///< Until it moves.
  bool stays_ = false;    ///< The tier would not have it.
  std::unique_ptr<TierItem> item_;
  bool fetching_ = false;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> back_;  ///< What came back.
  std::optional<c10::Stream> returned_on_;                         ///< Whose stream asked for it,
  std::shared_ptr<c10::Event> returned_;                           ///< and when it was there.
  std::int64_t begin_ = 0;
  at::Tensor held_;
  int returns_ = 0;  ///< How often it came back.
  int asked_ = 0;    ///< How many readers have seen the last return.
};

}  // namespace refrain::detail
