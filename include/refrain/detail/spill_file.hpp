// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/gaps.hpp>
#include <refrain/error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace refrain::detail {

/// A file without a name in a folder: nobody else sees it, and the system takes it away when the
/// process ends, however it ends.
///
/// Read and written past the system's cache where the file system can do that (`O_DIRECT`): what
/// is spilled would otherwise take the memory that it is to free.
class SpillFile {
 public:
  static constexpr std::int64_t kPage =
      4096;  ///< Places and sizes of pieces: what `O_DIRECT` needs.

  /// `cap`: bytes that it may take. Throws `TierError` if the folder has no room for a file.
  SpillFile(std::string folder, Bytes cap)
      : folder_(std::move(folder)), cap_(cap), gaps_(this->cap().count(), kPage) {
    open_direct();
    if (file_ < 0) open_plain();
    if (file_ < 0) {
      throw TierError(fmt::format("cannot make a file in `{}`.", folder_), says(errno),
                      "name a folder that exists and that this process may write to.");
    }
  }
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;
  ~SpillFile() { ::close(file_); }

  /// In whole pages.
  [[nodiscard]] Bytes cap() const {
    return cap_ == kNoLimit ? cap_ : Bytes(cap_.count() / kPage * kPage);
  }

  /// A place for so many bytes. Throws `TierError` beyond the cap.
  [[nodiscard]] std::int64_t take(std::int64_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto begin = gaps_.take(count)) return *begin;
    throw TierError(fmt::format("disk(\"{}\") may take {}, and has no room for {}.", folder_, cap_,
                                Bytes(count)),
                    fmt::format("its longest gap is {}.", Bytes(gaps_.longest())),
                    "raise its cap.");
  }
  void give_back(std::int64_t begin, std::int64_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    gaps_.give_back(begin, count);
  }

  void write(std::int64_t place, const void* from, std::int64_t count) {
    const auto* bytes = static_cast<const char*>(from);
    through_pages(count,
                  [&](char* page, std::int64_t done, std::int64_t size, std::int64_t padded) {
                    std::memcpy(page, bytes + done, static_cast<std::size_t>(size));
                    std::memset(page + size, 0, static_cast<std::size_t>(padded - size));
                    transfer(::pwrite, page, place + done, padded, "write");
                  });
    written_ += count;
  }
  /// `to` begins a page and has room for whole ones.
  void read(std::int64_t place, void* to, std::int64_t count) {
    transfer(::pread, static_cast<char*>(to), place, padded(count), "read");
    read_ += count;
  }
  static std::int64_t padded(std::int64_t count) { return (count + kPage - 1) / kPage * kPage; }

  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] bool direct() const { return direct_; }
  [[nodiscard]] Bytes written() const { return Bytes(written_.load()); }
  [[nodiscard]] Bytes bytes_read() const { return Bytes(read_.load()); }

 private:
  /// What goes through memory of ours at once.
  static constexpr std::int64_t kAtOnce = std::int64_t{8} << 20;

  struct Free {
    void operator()(char* pages) const { std::free(pages); }
  };

  void open_direct() {
    file_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
    direct_ = file_ >= 0;
  }
  void open_plain() {
    file_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file_ >= 0) return;
    std::string name = folder_ + "/refrain-spill-XXXXXX";  // where files must have a name
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ >= 0) ::unlink(name.c_str());
  }

  template <class Each>
  void through_pages(std::int64_t count, const Each& each) {
    const std::int64_t most = std::min(kAtOnce, padded(count));
    const std::unique_ptr<char, Free> pages(static_cast<char*>(
        std::aligned_alloc(static_cast<std::size_t>(kPage), static_cast<std::size_t>(most))));
    if (pages == nullptr) throw std::bad_alloc();
    for (std::int64_t done = 0; done < count; done += most) {
      const std::int64_t size = std::min(most, count - done);
      each(pages.get(), done, size, padded(size));
    }
  }

  template <class Call, class Memory>
  void transfer(Call call, Memory* memory, std::int64_t place, std::int64_t count,
                std::string_view what) {
    for (std::int64_t done = 0; done < count;) {
      const auto now = call(file_, memory + done, static_cast<std::size_t>(count - done),
                            static_cast<off_t>(place + done));
      if (now < 0 && errno == EINTR) continue;
      if (now < 0 && errno == EINVAL && direct_.exchange(false)) {  // larger pages than ours
        ::fcntl(file_, F_SETFL, ::fcntl(file_, F_GETFL) & ~O_DIRECT);
        continue;
      }
      const std::int64_t pages = now < 0 ? 0 : now / kPage * kPage;  // the next begins with a page
      if (pages == 0) {
        throw TierError(fmt::format("disk(\"{}\") could not {} {} at byte {} of its file.", folder_,
                                    what, Bytes(count), place + done),
                        now < 0 ? says(errno) : fmt::format("it went on for {} bytes only.", now),
                        "likely cause: the disk is full, or failed.");
      }
      done += pages;
    }
  }

  static std::string says(int error) {
    return fmt::format("the system says: {}", std::strerror(error));
  }

  std::string folder_;
  Bytes cap_;
  int file_ = -1;
  std::atomic<bool> direct_ = false;
  std::mutex mutex_;
  Gaps gaps_;
  std::atomic<std::int64_t> written_ = 0;
  std::atomic<std::int64_t> read_ = 0;
};

}  // namespace refrain::detail
