// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/ledger.hpp>

#include <cstdint>
#include <string>

namespace support {

/// A replayed call that forgets 100 and keeps an input of 10. It runs from `begin` for a second and
/// is replayed from `replay` for a second.
inline refrain::RegionCall region_call(const std::string& region, double begin, double replay) {
  using refrain::Bytes;
  refrain::RegionCall call;
  call.region = region;
  call.tensors = 3;
  call.saved = Bytes(110);
  call.forgotten = Bytes(100);
  call.kept = {{refrain::KeptMemory::Why::Input, "argument 0, float32[5]", Bytes(10), "", false}};
  call.saved_inputs = Bytes(10);
  call.differentiable = true;
  call.savers = {{"aten::linear", Bytes(110)}};
  call.first_run = {begin, begin + 1};
  call.replays = {{{replay, replay + 1}, true, Bytes(100), 0}};
  return call;
}

/// Two regions, a loss, a backward pass of six seconds, an optimizer:
///
///     0      1      2      3      4  loss  6  rest  7   replay b   8  9   replay a  10   12  13
///     | rest | a    | b    |      |        |  backward                                   |  rest
///
/// The peak of 500 is right after the replay of `a`.
inline refrain::Ledger two_regions() {
  using refrain::Bytes;
  refrain::Ledger ledger;
  ledger.calls = {region_call("a", 1, 9), region_call("b", 2, 7)};
  ledger.backward_passes = {{6, 12}};
  ledger.seconds = 14;
  ledger.device = "cpu";
  ledger.whole = true;
  ledger.timeline = {{0, Bytes(100)},    {1.5, Bytes(200)}, {2.5, Bytes(210)}, {4, Bytes(250)},
                     {6.5, Bytes(450)},  {7.5, Bytes(480)}, {8.5, Bytes(300)}, {9.5, Bytes(400)},
                     {10.5, Bytes(500)}, {11, Bytes(300)},  {13, Bytes(150)}};
  return ledger;
}

}  // namespace support
