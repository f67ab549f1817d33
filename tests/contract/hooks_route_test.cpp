// SPDX-License-Identifier: BSD-3-Clause
#include "route_contract.hpp"

namespace {

struct HooksRoute : OnHost {
  static refrain::Route route() { return refrain::Route::Hooks; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Hooks, RouteContract, HooksRoute);

}  // namespace
