// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/keep_call.hpp>
#include <refrain/detail/loop_types.hpp>
#include <refrain/detail/region.hpp>
#include <refrain/detail/segment_regions.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace refrain::detail {

/// What tells an open loop to go on: true, or the next input; called with the state, or nothing.
template <class Next, class State>
decltype(auto) ask_next(Next& next, const State& state) {
  if constexpr (std::invocable<Next&, const State&>) {
    return next(state);
  } else {
    return next();
  }
}

template <class Next, class State>
concept AsksForMore = std::invocable<Next&, const State&> || std::invocable<Next&>;

template <class Next, class State>
using NextAnswer =
    std::decay_t<decltype(ask_next(std::declval<Next&>(), std::declval<const State&>()))>;

/// The types of a loop whose `next` gives `Answer`.
template <class Step, class State, class Answer>
struct OpenLoopTypes {
  static_assert(std::same_as<Answer, State>,
                "refrain: what tells a loop to go on gives a bool, or an optional input");
};
template <class Step, class State>
struct OpenLoopTypes<Step, State, bool> : LoopTypes<Step, State> {};
template <class Step, class State, class Input>
struct OpenLoopTypes<Step, State, std::optional<Input>> : LoopTypes<Step, State, Input> {};

/// Runs the steps of a loop of unknown length, period after period, each in its segments.
template <class Step, class State, class Next>
class OpenLoopRunner {
 public:
  using Answer = NextAnswer<Next, State>;
  using Types = OpenLoopTypes<Step, State, Answer>;
  using Piece = typename Types::Piece;

  /// `regions` cut one period.
  OpenLoopRunner(std::shared_ptr<Step> step, std::shared_ptr<Next> next,
                 std::shared_ptr<SegmentRegions> regions)
      : step_(std::move(step)), next_(std::move(next)), regions_(std::move(regions)) {}

  Piece run(State state) {
    Piece whole{std::move(state)};
    while (!whole.ended) run(whole, *regions_, ask(whole.state));
    return whole;
  }

 private:
  /// The same; a step that changes itself when called is copied as it is now. `next` is not called
  /// again: a replay knows its answers.
  [[nodiscard]] OpenLoopRunner as_it_is() const {
    if constexpr (!Types::kStepIsConst) {
      return {std::make_shared<Step>(*step_), next_, regions_};
    } else {
      return *this;
    }
  }

  /// What the region of a segment calls. It owns what it needs: the frame may outlive the loop.
  struct Callee {
    OpenLoopRunner runner;
    SegmentRegion* region;

    Piece operator()(State state, Answer answer) {
      Piece piece{std::move(state)};
      if (region->inside.empty()) {
        runner.run_plainly(piece, region->range.size(), std::move(answer));
      } else {
        runner.run(piece, region->inside, std::move(answer));
      }
      return piece;
    }
    [[nodiscard]] Callee kept() const { return {runner.as_it_is(), region}; }
    [[nodiscard]] Callee for_replay() const { return {runner.as_it_is(), region}; }
  };

  /// `first` is the answer for the first step.
  void run(Piece& whole, SegmentRegions& regions, Answer first) {
    for (std::size_t i = 0; i < regions.size() && !whole.ended; ++i) {
      Answer answer = i == 0 ? std::move(first) : ask(whole.state);
      SegmentRegion& region = regions[i];
      if (!answer) {
        whole.ended = true;
      } else if (region.settings == nullptr || !regions_are_on()) {
        run_plainly(whole, region.range.size(), std::move(answer));
      } else {
        whole.append(call_region(region.settings, Callee{*this, &region}, nullptr,
                                 std::move(whole.state), std::move(answer)));
      }
    }
  }

  void run_plainly(Piece& whole, std::int64_t steps, Answer answer) {
    for (std::int64_t i = 0; i < steps; ++i) {
      if (i > 0) answer = ask(whole.state);
      if (!answer) whole.ended = true;
      if (whole.ended) return;
      if constexpr (std::same_as<Answer, bool>) {
        whole.add(call_thing(*step_, std::move(whole.state)));
      } else {
        whole.add(call_thing(*step_, std::move(whole.state), *std::as_const(answer)));
      }
    }
  }

  Answer ask(const State& state) {
    return keep_always("next", [&] { return ask_next(*next_, state); });
  }

  std::shared_ptr<Step> step_;
  std::shared_ptr<Next> next_;
  std::shared_ptr<SegmentRegions> regions_;
};

}  // namespace refrain::detail
