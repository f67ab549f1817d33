// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <typeinfo>

/// What each of two translation units sees of the library.
struct Sight {
  const std::type_info* block;
  const void* version;
  bool (*is_replaying)();
};

Sight sight_of_one();
Sight sight_of_two();
