// SPDX-License-Identifier: BSD-3-Clause
//
// Replays run on the device's thread of autograd, and on the stream of whoever asks first.
#include "steps.hpp"
#include "streams.hpp"
#include "support/run_counter.hpp"
#include <refrain/checkpoint.hpp>

#include <c10/core/StreamGuard.h>

#include <thread>

namespace gpu_check {
namespace {

using refrain::EarlyStop;

Outcome stops_early(const Where& where) {
  const auto caller = std::this_thread::get_id();
  std::thread::id replayed_on;
  const support::RunCounter ends;
  const auto body = [&, ends](Tensor x) {
    if (refrain::replaying()) replayed_on = std::this_thread::get_id();
    auto y = x.exp().tanh();
    ++ends;
    return y + 1;
  };
  const auto steps = [&] {
    for (int i = 0; i < 5; ++i)
      refrain::checkpoint(body, EarlyStop::On)(leaf(where, {100, 100})).sum().backward();
  };
  steps();
  const auto before = settled_live(where);
  steps();
  require(ends.runs() == 10, fmt::format("{} of 20 runs went to their end, not 10", ends.runs()));
  const auto more = settled_live(where) - before;
  require(more == 0, fmt::format("{} bytes are left", more));
  if (where.on_gpu()) require(replayed_on != caller, "the replay was on the caller's thread");
  return passed();
}

Outcome gives_the_plain_gradients(const Where& where) {
  for (const auto stop : {EarlyStop::On, EarlyStop::Off}) {
    require_same(where, [&] {
      const auto x = leaf(where, {128, 128});
      const auto w = leaf(where, {128, 128});
      const auto region =
          refrain::checkpoint([w](Tensor t) { return t.mm(w).tanh().softmax(-1); }, stop);
      const auto y = region(region(x));
      loss(y.square()).backward();
      return std::vector<Tensor>{y.detach(), x.grad(), w.grad()};
    });
  }
  return passed();
}

/// One region that works on two streams: their nodes ask for what one replay rebuilds.
Outcome two_streams(const Where& where) {
  if (!where.on_gpu()) return skipped("the CPU has no streams");
  const auto side = new_stream(where);
  const auto region = refrain::checkpoint([&](const Tensor& x, const Tensor& w) {
    const auto main = current_stream(where);
    const Tensor a = x.mm(w).tanh();
    Tensor b;
    order(main, side);
    {
      const c10::StreamGuard other(side);
      b = a.exp().mm(w).sin();
    }
    order(side, main);
    used_on(a, side);
    used_on(w, side);
    used_on(b, main);
    return a * b;
  });
  constexpr int kRounds = 50;
  for (int i = 0; i < kRounds; ++i) {
    require_same(
        where,
        [&] {
          const auto w = leaf(where, {512, 512});
          const auto x = leaf(where, {512, 512});
          Tensor h = x / 16;
          for (int layer = 0; layer < 3; ++layer) h = region(h, w * 0.02);
          loss(h).backward();
          return std::vector<Tensor>{x.grad(), w.grad()};
        },
        static_cast<std::uint64_t>(i));
  }
  return passed(fmt::format("{} rounds", kRounds));
}

/// Two regions, each on a stream of its own.
Outcome a_stream_each(const Where& where) {
  if (!where.on_gpu()) return skipped("the CPU has no streams");
  const auto side = new_stream(where);
  constexpr int kRounds = 50;
  for (int i = 0; i < kRounds; ++i) {
    require_same(
        where,
        [&] {
          const auto region =
              refrain::checkpoint([](Tensor t) { return t.mm(t).tanh().exp().sin(); });
          const auto x = leaf(where, {512, 512});
          const auto main = current_stream(where);
          const Tensor start = x / 32;
          Tensor b;
          order(main, side);
          {
            const c10::StreamGuard other(side);
            b = region(start);
          }
          const Tensor a = region(start);
          order(side, main);
          used_on(start, side);
          used_on(b, main);
          loss(a * b).backward();
          return std::vector<Tensor>{x.grad()};
        },
        static_cast<std::uint64_t>(i));
  }
  return passed(fmt::format("{} rounds", kRounds));
}

}  // namespace

void add_threads_and_streams(Checks& checks) {
  checks.group("device threads");
  checks.check("early stop, without a leak", stops_early);
  checks.check("the plain run's gradients, stopped early or not", gives_the_plain_gradients);
  checks.group("streams");
  checks.check("two streams in one region", two_streams);
  checks.check("two regions, a stream each", a_stream_each);
}

}  // namespace gpu_check
