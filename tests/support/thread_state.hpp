// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/replay.hpp>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

namespace support {

/// Switches autocast for a scope.
class Autocast {
 public:
  explicit Autocast(bool on = true, at::ScalarType dtype = at::kBFloat16,
                    at::DeviceType device = at::kCPU)
      : device_(device) {
    at::autocast::set_autocast_enabled(device_, on);
    at::autocast::set_autocast_dtype(device_, dtype);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_on_);
    at::autocast::set_autocast_dtype(device_, was_);
  }

 private:
  at::DeviceType device_;
  bool was_on_ = at::autocast::is_autocast_enabled(device_);
  at::ScalarType was_ = at::autocast::get_autocast_dtype(device_);
};

/// What the calling thread could notice if a region did not tidy up after itself.
class ThreadState {
 public:
  void expect_unchanged() const {
    const ThreadState now;
    EXPECT_EQ(now.grad_mode_, grad_mode_);
    EXPECT_EQ(now.inference_mode_, inference_mode_);
    EXPECT_EQ(now.autocast_, autocast_);
    EXPECT_EQ(now.autocast_dtype_, autocast_dtype_);
    EXPECT_EQ(now.autocast_cache_, autocast_cache_);
    EXPECT_TRUE(now.keys_.included_ == keys_.included_) << "dispatch keys were left switched on";
    EXPECT_TRUE(now.keys_.excluded_ == keys_.excluded_) << "dispatch keys were left switched off";
    EXPECT_TRUE(torch::equal(now.random_, random_)) << "the random stream moved";
    EXPECT_FALSE(refrain::replaying());
  }

 private:
  bool grad_mode_ = torch::GradMode::is_enabled();
  bool inference_mode_ = c10::InferenceMode::is_enabled();
  bool autocast_ = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType autocast_dtype_ = at::autocast::get_autocast_dtype(at::kCPU);
  bool autocast_cache_ = at::autocast::is_autocast_cache_enabled();
  c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  torch::Tensor random_ = at::globalContext().defaultGenerator(at::kCPU).get_state();
};

}  // namespace support
