// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace refrain {

/// This release, as "major.minor.patch". The build reads it from this line.
inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace refrain
