// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string>

namespace gpu_check {

/// What NVIDIA's driver says of this machine, asked without CUDA's headers and before LibTorch: so
/// a machine without a GPU gets a reason instead of a loader's error.
struct Driver {
  int devices = 0;
  std::string why_none;  ///< Where there is no device.
  std::string device;    ///< The first one's name.
  std::string memory;
  std::string version;  ///< The newest CUDA that the driver knows.

  [[nodiscard]] static Driver ask() {
    Driver driver;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
      const char* const error = dlerror();
      driver.why_none = fmt::format("no driver, {}", error != nullptr ? error : "libcuda.so.1");
      return driver;
    }
    const auto call = [library](const char* name, auto... arguments) {
      auto* const function =
          reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(library, name));
      return function == nullptr ? kMissing : function(arguments...);
    };
    const int status = call("cuInit", 0U);
    if (status != 0) {
      driver.why_none = fmt::format("cuInit says {}", status);
      return driver;
    }
    call("cuDeviceGetCount", &driver.devices);
    if (driver.devices == 0) driver.why_none = "the driver sees none";
    int newest = 0;
    call("cuDriverGetVersion", &newest);
    driver.version = fmt::format("{}.{}", newest / 1000, newest % 1000 / 10);
    if (driver.devices == 0) return driver;
    int first = 0;
    std::array<char, 256> name{};
    std::size_t bytes = 0;
    call("cuDeviceGet", &first, 0);
    call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), first);
    call("cuDeviceTotalMem_v2", &bytes, first);
    driver.device = name.data();
    driver.memory = fmt::format("{:.0f} GiB", static_cast<double>(bytes) / (1024.0 * 1024 * 1024));
    return driver;
  }

 private:
  static constexpr int kMissing = -1;
};

}  // namespace gpu_check
