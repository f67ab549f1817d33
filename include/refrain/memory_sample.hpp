// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>

namespace refrain {

/// The bytes that lived at one moment, in seconds since somebody began to look.
struct MemorySample {
  double seconds = 0;
  Bytes live;

  friend bool operator==(const MemorySample&, const MemorySample&) = default;
};

}  // namespace refrain
