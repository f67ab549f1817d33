// SPDX-License-Identifier: BSD-3-Clause
//
// The contract of the routes on a device with threads of its own, whose work is late.
#include "contract/route_contract.hpp"
#include "support/fake_accelerator.hpp"

namespace {

using support::Async;

/// Replays run on the device's thread there.
template <refrain::Route kRoute, Async kMode>
class OnDevice {
 public:
  OnDevice() : scope_(installed()) { support::fake::delay_streams(200, /*seed=*/20); }
  static refrain::Route route() { return kRoute; }
  static torch::Device device() { return support::fake_device(0); }

 private:
  static Async installed() {
    support::install_fake_accelerator();
    return kMode;
  }

  support::AsyncScope scope_;
};

using Ways = testing::Types<
    OnDevice<refrain::Route::Hooks, Async::AtOnce>, OnDevice<refrain::Route::Hooks, Async::Threads>,
    OnDevice<refrain::Route::Hooks, Async::Lazy>, OnDevice<refrain::Route::Function, Async::AtOnce>,
    OnDevice<refrain::Route::Function, Async::Threads>,
    OnDevice<refrain::Route::Function, Async::Lazy>>;
INSTANTIATE_TYPED_TEST_SUITE_P(OnDevice, RouteContract, Ways);

}  // namespace
