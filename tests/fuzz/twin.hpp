// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/interpret.hpp"
#include "fuzz/protect.hpp"
#include "fuzz/text.hpp"
#include <refrain/error.hpp>
#include <refrain/memory.hpp>
#include <refrain/record.hpp>
#include <refrain/replay.hpp>

#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace refrain_fuzz {

enum class Calls { Plain, Checkpointed };

/// All that a user could see of one run.
struct Observed {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::string error;      // what it threw, if it did
  bool refused = false;   // by the library: it cannot serve this
  std::int64_t left = 0;  // bytes that live on after everything is dropped

  void add(std::string name, const at::Tensor& t) {
    tensors.emplace_back(std::move(name), t.defined() ? t.detach().clone() : t);
  }
  void add_all(const std::string& name, const Tensors& list) {
    for (std::size_t i = 0; i < list.size(); ++i) add(name + " " + std::to_string(i), list[i]);
  }
};

namespace drive {

inline at::Tensor weighted(const at::Tensor& t) {
  return (t * at::linspace(0.5, 1.5, t.numel(), t.options()).view_as(t)).sum();
}

inline Tensors losses(const Tensors& outputs) {
  Tensors out;
  for (const auto& t : outputs) {
    if (t.requires_grad()) out.push_back(weighted(t));
  }
  return out;
}

inline Tensors grad(const at::Tensor& loss, const Tensors& leaves, bool create) {
  return torch::autograd::grad({loss}, leaves, {}, create, create, /*allow_unused=*/true);
}

inline void interrupted(const at::Tensor& loss, const at::Tensor& leaf) {
  bool armed = true;
  const auto hook = leaf.register_hook([&armed](const at::Tensor& g) {
    if (armed) throw std::runtime_error("interrupted");
    return g;
  });
  try {
    loss.backward({}, true);
  } catch (const std::runtime_error& e) {
    if (std::string(e.what()).find("interrupted") == std::string::npos) throw;
  }
  armed = false;
  loss.backward();
  leaf.remove_hook(hook);
}

inline void backward(const at::Tensor& loss) { loss.backward(); }

inline void on_another_thread(const at::Tensor& loss) {
  std::exception_ptr failure;
  std::thread([&] {
    at::set_num_threads(1);  // of this thread: convolutions sum in an order that depends on it
    try {
      loss.backward();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace drive

/// Backward as the program's settings want it; gradients that are handed out go to `seen`.
inline void drive_backward(Drive how, Tensors losses, const Tensors& leaves, Observed& seen) {
  if (losses.empty() || how == Drive::Forget) return;
  if (how == Drive::Piecewise) {
    for (std::size_t i = 0; i < losses.size(); ++i) losses[i].backward({}, i + 1 < losses.size());
    return;
  }
  auto loss = losses[0];
  for (std::size_t i = 1; i < losses.size(); ++i) loss = loss + losses[i];
  losses.clear();
  Tensors some;
  for (std::size_t i = 0; i < leaves.size(); i += 2) some.push_back(leaves[i]);
  switch (how) {
    case Drive::Twice:
      loss.backward({}, true);
      [[fallthrough]];
    case Drive::Backward:
      return loss.backward();
    case Drive::Grad:
      return seen.add_all("grad()", drive::grad(loss, leaves, false));
    case Drive::Inputs:
      return loss.backward({}, false, false, some);
    case Drive::Penalty: {
      auto total = loss;
      for (const auto& g : drive::grad(loss, leaves, true)) {
        if (g.defined() && g.requires_grad()) total = total + g.square().sum() * 0.1;
      }
      return total.backward();
    }
    case Drive::Thread:
      return drive::on_another_thread(loss);
    case Drive::Interrupted:
      return drive::interrupted(loss, leaves.at(0));
    default:
      return;
  }
}

/// What must hold of any ledger.
inline void check(const refrain::Ledger& ledger) {
  const auto must = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("the ledger is wrong: ") + what);
  };
  for (std::size_t i = 0; i < ledger.calls.size(); ++i) {
    const auto& call = ledger.calls[i];
    must(call.inside < static_cast<std::int64_t>(i), "a call is inside a later one");
    must(call.forgotten <= call.saved, "more is forgotten than was saved");
    must(call.first_run.begin <= call.first_run.end, "a first run ends before it begins");
    refrain::Bytes savers;
    for (const auto& saver : call.savers) savers += saver.bytes;
    must(savers == call.saved, "operators save another sum than the call");
    for (const auto& replay : call.replays) {
      must(replay.time.begin <= replay.time.end, "a replay ends before it begins");
      must(replay.rebuilt <= call.saved, "more is rebuilt than was saved");
    }
  }
  must(to_csv(ledger).size() > 0 && to_string(ledger).size() > 0, "it has no text");
}

/// The forward and the backward pass; what a user could see of them goes to `seen`, and the name of
/// the part that runs to `stage`.
inline void run(const Program& program, Observed& seen, std::string& stage) {
  const auto machine = std::make_shared<Machine>(program);
  auto outputs = machine->forward();
  seen.add_all("output", outputs);
  auto leaves = machine->leaves();
  leaves.insert(leaves.end(), machine->state().parameters.begin(),
                machine->state().parameters.end());
  seen.add("a draw after the forward", at::rand({2}));
  seen.add_all("buffer after the forward", machine->state().buffers);
  stage = "backward";
  auto losses = drive::losses(outputs);
  outputs.clear();
  drive_backward(program.settings.drive, std::move(losses), leaves, seen);
  for (std::size_t i = 0; i < leaves.size(); ++i)
    seen.add("gradient " + std::to_string(i), leaves[i].grad());
  seen.add_all("buffer", machine->state().buffers);
  seen.add("own generator", machine->state().generator.get_state());
}

/// One run of the program from its seed.
inline Observed observe(const Program& program, Calls calls) {
  Observed seen;
  std::optional<refrain::PlainScope> plain;
  if (calls == Calls::Plain) plain.emplace();
  torch::manual_seed(program.settings.seed);
  std::string stage = "forward";
  try {
    if (calls == Calls::Checkpointed && program.settings.recorded) {
      check(refrain::record([&] { run(program, seen, stage); }));
    } else {
      run(program, seen, stage);
    }
  } catch (const refrain::Error& e) {
    seen.error = stage + ": " + e.what();
    seen.refused = dynamic_cast<const refrain::DivergenceError*>(&e) == nullptr;
  } catch (const c10::Error& e) {
    seen.error = stage + ": " + e.what_without_backtrace();
  } catch (const std::exception& e) {
    const std::string message = e.what();
    seen.error = stage + ": " + message.substr(0, message.find("Exception raised from"));
  }
  if (const auto held = waiting_room().counts().held; held > 0 && !program.may_hold_itself)
    seen.error += " (still moved: " + std::to_string(held) + ")";
  seen.add("default generator", at::globalContext().defaultGenerator(at::kCPU).get_state());
  return seen;
}

/// How far apart two numbers may be. The function route adds up gradients in another order.
inline double tolerance(const Settings& settings) {
  if (!settings.function_route) return 0;
  return settings.autocast ? 0.1 : settings.wide ? 1e-9 : 1e-3;
}

/// What a user would see of two tensors: the same bits, or equal numbers.
inline bool same(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto x = a.contiguous();
  const auto y = b.contiguous();
  if (x.nbytes() == 0) return true;
  if (std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0 || at::equal(x, y))
    return true;
  return tolerance > 0 && at::allclose(x, y, tolerance, tolerance, /*equal_nan=*/true);
}

/// How the two runs of a program compare.
struct Verdict {
  enum Kind { Equal, BothThrow, Refused, Stricter, Different, Unnoticed, Leak } kind = Equal;
  std::string detail;
  [[nodiscard]] bool failed() const { return kind >= Stricter; }
};

/// After a failed backward the engine's queue of this thread still holds nodes: the next one clears
/// it.
inline void clear_engine_queue() { at::ones({1}).requires_grad_().sum().backward(); }

inline Observed observe_and_weigh(const Program& program, Calls calls) {
  if (!refrain::counting_cpu_memory()) return observe(program, calls);
  clear_engine_queue();
  const auto before = refrain::memory().live.count();
  auto seen = observe(program, calls);
  clear_engine_queue();
  std::int64_t kept = 0;
  for (const auto& [name, t] : seen.tensors) {
    if (t.defined()) kept += static_cast<std::int64_t>(t.storage().nbytes());
  }
  seen.left = refrain::memory().live.count() - before - kept;
  return seen;
}

inline Verdict compare(const Program& program, const Observed& plain, const Observed& quiet) {
  if (!plain.error.empty() && !quiet.error.empty()) return {Verdict::BothThrow, plain.error};
  if (!quiet.error.empty()) {
    // A gradient that the body takes through a kept value is refused in the replay.
    const bool through_kept = quiet.error.find("gave, whose graph") != std::string::npos;
    const bool allowed = through_kept || (program.settings.function_route && quiet.refused);
    return {allowed ? Verdict::Refused : Verdict::Stricter, quiet.error};
  }
  if (!plain.error.empty()) {
    if (!program.settings.check || program.settings.function_route)
      return {Verdict::BothThrow, plain.error};
    return {Verdict::Unnoticed, plain.error};
  }
  for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
    const auto& [name, expected] = plain.tensors[i];
    const auto& got = quiet.tensors.at(i).second;
    // Through one node for all results, no gradient and a gradient of zero are the same.
    const auto nothing = program.settings.function_route && !expected.defined() && got.defined();
    if (nothing && got.count_nonzero().item<std::int64_t>() == 0) continue;
    if (!same(expected, got, tolerance(program.settings))) return {Verdict::Different, name};
  }
  return {};
}

/// Runs the program both ways and says what is wrong, if anything.
[[nodiscard]] inline Verdict twin(Program program) {
  protect_inputs(program);
  const auto plain = observe_and_weigh(program, Calls::Plain);
  const auto quiet = observe_and_weigh(program, Calls::Checkpointed);
  auto verdict = compare(program, plain, quiet);
  if (verdict.kind != Verdict::Equal || quiet.left == plain.left) return verdict;
  // LibTorch keeps some memory at the first use of an op: only what is lost again is a leak.
  const auto again = observe_and_weigh(program, Calls::Checkpointed).left;
  const auto bare = observe_and_weigh(program, Calls::Plain).left;
  // Plain LibTorch leaks where a tensor is written into one that it was computed from. The function
  // route runs such a body twice, and no hook of ours breaks the loop.
  if (program.settings.function_route && bare > 0) return verdict;
  if (again > bare && !program.may_hold_itself)
    return {Verdict::Leak, std::to_string(again - bare) + " bytes"};
  return verdict;
}

}  // namespace refrain_fuzz
