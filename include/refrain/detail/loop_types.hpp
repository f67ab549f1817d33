// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/forward_signature.hpp>

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain::detail {

/// The outputs of some steps in a row, of a step that gives `Given`: the next state, or a pair of
/// that and an output.
template <class Given, class State>
struct LoopOutputs {
  static_assert(std::same_as<Given, State>,
                "refrain: a loop's step gives its next state, or a pair of that and an output");
  using type = std::tuple<>;
};
template <class State, class Output>
struct LoopOutputs<std::pair<State, Output>, State> {
  using type = std::vector<Output>;
};
template <class State, class Output>
struct LoopOutputs<std::tuple<State, Output>, State> {
  using type = std::vector<Output>;
};

/// What a loop of steps `step(state, input...)` gives.
template <class Step, class State, class... Input>
struct LoopTypes {
  using Given = std::decay_t<decltype(call_thing(std::declval<Step&>(), std::declval<State>(),
                                                 std::declval<const Input&>()...))>;
  using Outputs = typename LoopOutputs<Given, State>::type;
  static constexpr bool kGivesOutputs = !std::same_as<Given, State>;
  static constexpr bool kStepIsConst = std::invocable<const Step&, State, const Input&...>;

  /// What some steps in a row gave.
  struct Piece {
    State state;
    Outputs outputs = {};
    bool ended = false;  ///< The loop was over before the steps were.

    /// One step more.
    void add(Given given) {
      if constexpr (kGivesOutputs) {
        state = std::move(std::get<0>(given));
        outputs.push_back(std::move(std::get<1>(given)));
      } else {
        state = std::move(given);
      }
    }
    /// The steps that came after.
    void append(Piece later) {
      state = std::move(later.state);
      ended = later.ended;
      if constexpr (kGivesOutputs) {
        for (auto& output : later.outputs) outputs.push_back(std::move(output));
      }
    }

    /// What the user gets.
    [[nodiscard]] auto result() && {
      if constexpr (kGivesOutputs) {
        return std::pair(std::move(state), std::move(outputs));
      } else {
        return std::move(state);
      }
    }

    template <class Visit>
    friend void visit_tensors(Piece& piece, Visit&& visit) {
      visit(piece.state);
      visit(piece.outputs);
    }
  };
};

}  // namespace refrain::detail
