// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/any_region.hpp>
#include <refrain/detail/short_what.hpp>
#include <refrain/detail/step_trace.hpp>
#include <refrain/replay.hpp>
#include <refrain/verify_options.hpp>
#include <refrain/verify_report.hpp>

#include <ATen/Context.h>
#include <ATen/ops/equal.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain {

namespace detail {

template <class Thing, class... Inputs>
class Verifier {
 public:
  Verifier(const VerifyOptions& options, Thing& thing, const Inputs&... inputs)
      : options_(options), thing_(thing), inputs_(inputs...) {}

  [[nodiscard]] VerifyReport run() {
    // The checkpointed step goes first: a cache that the plain step had filled could hide what a
    // replay does to it.
    StepTrace quiet = step(Side::Checkpointed);
    if (made_tensors_) quiet = step(Side::Checkpointed);
    const StepTrace plain = step(Side::Plain);
    VerifyReport report;
    report.tolerance = options_.tolerance();
    report.outputs = plain.outputs.size();
    report.input_gradients = plain.input_gradients.size();
    report.parameter_gradients = plain.gradients.size();
    report.buffers = plain.buffers.size();
    report.generators = plain.generators.size();
    report.plain = plain.cost;
    report.checkpointed = quiet.cost;
    report.plain_error = plain.error;
    report.checkpointed_error = quiet.error;
    if (plain.error.empty() && quiet.error.empty()) report.differences = compare(plain, quiet);
    if (!report.ok()) report.repeatable = compare(plain, step(Side::Plain)).empty();
    return report;
  }

 private:
  enum class Side { Plain, Checkpointed };

  StepTrace step(Side side) {
    StepTrace trace;
    const Owned owned = Owned::of(thing_);
    std::vector<OutsideWrite> state;
    for (const NamedTensor& buffer : owned.buffers)
      state.push_back({buffer.tensor.detach(), buffer.tensor.detach().clone()});
    const OutsideStateScope buffers_come_back(state);
    std::vector<RandomState> before = generators();
    if (options_.seed()) {
      for (RandomState& generator : before) generator.seed(*options_.seed());
    }
    GradientsAside gradients_come_back;
    for (const NamedTensor& parameter : owned.parameters) gradients_come_back.add(parameter.tensor);
    std::optional<PlainScope> plain;
    if (side == Side::Plain) plain.emplace();
    std::vector<OutsideWrite> captured;
    try {
      run_step(trace, owned, gradients_come_back, captured);
    } catch (const std::exception& error) {
      trace.error = short_what(error);
    }
    made_tensors_ = Owned::of(thing_).buffers.size() != owned.buffers.size() ||
                    Owned::of(thing_).parameters.size() != owned.parameters.size();
    for (const NamedTensor& buffer : owned.buffers)
      trace.buffers.push_back(copy("buffer " + buffer.name, buffer.tensor));
    for (const OutsideWrite& write : captured) {
      trace.buffers.push_back(
          copy(fmt::format("captured buffer {}", trace.buffers.size() - owned.buffers.size()),
               write.live));
    }
    undo(captured);
    trace.generators = generators();
    for (RandomState& generator : before) generator.restore();
    return trace;
  }

  void run_step(StepTrace& trace, const Owned& owned, GradientsAside& aside,
                std::vector<OutsideWrite>& captured) {
    const std::uint64_t replays = replays_begun.load();
    const GraphBorder border;
    auto inputs = inputs_;
    std::vector<at::Tensor> leaves;
    for_each_tensor_in(inputs, [&](at::Tensor& tensor) {
      if (!tensor.defined()) return;
      const bool may_be_changed = !tensor.is_leaf();  // in place
      tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad());
      leaves.push_back(tensor);
      if (may_be_changed) tensor = tensor.clone();
    });
    std::vector<at::Tensor> roots;
    std::vector<at::Tensor> outputs;
    const StepMeter meter(device());
    {
      const std::vector<at::Tensor> none;
      Footprint footprint("verify", none, Footprint::TrackedWrites::LetPass);
      const Footprint::Scope watched(&footprint);
      const CapturedWrites note(footprint, owned, captured);
      auto result =
          std::apply([this](auto&... input) { return call_thing(thing_, input...); }, inputs);
      for_each_tensor_in(result, [&](at::Tensor& tensor) {
        if (!tensor.defined()) return;
        outputs.push_back(tensor.detach());
        if (tensor.requires_grad()) roots.push_back(tensor);
      });
    }
    trace.cost.saved = meter.live();
    send_back(roots, border, aside, leaves, owned);
    trace.cost.peak = meter.peak();
    trace.cost.replays = replays_begun.load() - replays;
    for (const at::Tensor& output : outputs) {
      trace.outputs.push_back(copy(fmt::format("output {}", trace.outputs.size()), output));
    }
    copy_gradients(leaves, owned, trace);
  }

  void send_back(std::vector<at::Tensor>& roots, const GraphBorder& border, GradientsAside& aside,
                 const std::vector<at::Tensor>& leaves, const Owned& owned) {
    torch::autograd::edge_list edges;
    std::vector<at::Tensor> probes;
    for (const at::Tensor& root : roots) {
      edges.push_back(torch::autograd::impl::gradient_edge(root));
      probes.push_back(probe_gradient(root));
    }
    const Reached reached(edges, border);
    edges.clear();
    const auto is_known = [&](const at::Tensor& leaf) {
      return std::any_of(leaves.begin(), leaves.end(),
                         [&](const at::Tensor& input) { return input.is_same(leaf); }) ||
             std::any_of(
                 owned.parameters.begin(), owned.parameters.end(),
                 [&](const NamedTensor& parameter) { return parameter.tensor.is_same(leaf); });
    };
    for (const at::Tensor& leaf : reached.leaves) {
      if (is_known(leaf)) continue;
      aside.add(leaf);
      if (std::none_of(captured_.begin(), captured_.end(),
                       [&](const at::Tensor& known) { return known.is_same(leaf); })) {
        captured_.push_back(leaf);
      }
    }
    if (!roots.empty()) torch::autograd::backward(roots, probes, reached.older_graph);
    roots.clear();
  }

  void copy_gradients(const std::vector<at::Tensor>& leaves, const Owned& owned,
                      StepTrace& trace) const {
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      if (leaves[i].requires_grad()) {
        trace.input_gradients.push_back(
            copy(fmt::format("gradient of input {}", i), leaves[i].grad()));
      }
    }
    for (const NamedTensor& parameter : owned.parameters) {
      trace.gradients.push_back(copy("gradient of " + parameter.name, parameter.tensor.grad()));
    }
    for (std::size_t i = 0; i < captured_.size(); ++i) {
      trace.gradients.push_back(
          copy(fmt::format("gradient of captured tensor {}", i), captured_[i].grad()));
    }
  }

  /// Takes what the footprint saw written, but for buffers that the thing owns, also if the run
  /// ends in an exception.
  class CapturedWrites {
   public:
    CapturedWrites(const Footprint& footprint, const Owned& owned, std::vector<OutsideWrite>& out)
        : footprint_(footprint), owned_(owned), out_(out) {}
    CapturedWrites(const CapturedWrites&) = delete;
    CapturedWrites& operator=(const CapturedWrites&) = delete;
    ~CapturedWrites() {
      for (const OutsideWrite& write : footprint_.writes()) {
        const bool known = std::any_of(
            owned_.buffers.begin(), owned_.buffers.end(),
            [&](const NamedTensor& buffer) { return buffer.tensor.is_alias_of(write.live); });
        if (!known) out_.push_back(write);
      }
    }

   private:
    const Footprint& footprint_;
    const Owned& owned_;
    std::vector<OutsideWrite>& out_;
  };

  static NamedTensor copy(std::string name, const at::Tensor& tensor) {
    return {std::move(name), tensor.defined() ? tensor.detach().clone() : tensor};
  }

  [[nodiscard]] c10::Device device() {
    std::optional<c10::Device> device;
    for_each_tensor_in(inputs_, [&](at::Tensor& tensor) {
      if (tensor.defined() && !device) device = tensor.device();
    });
    return device.value_or(c10::Device(c10::kCPU));
  }

  [[nodiscard]] std::vector<RandomState> generators() {
    return random_states(generators_of(thing_));
  }

  [[nodiscard]] std::vector<Difference> compare(const StepTrace& plain,
                                                const StepTrace& quiet) const {
    std::vector<Difference> found;
    const auto all = [&](const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b,
                         const char* what) {
      if (a.size() != b.size()) {
        found.push_back({what, fmt::format("{} in the plain step, {} in the checkpointed one",
                                           a.size(), b.size())});
        return;
      }
      for (std::size_t i = 0; i < a.size(); ++i) {
        std::string how = difference_between(a[i].tensor, b[i].tensor, options_.tolerance());
        if (!how.empty()) found.push_back({a[i].name, std::move(how)});
      }
    };
    all(plain.outputs, quiet.outputs, "number of outputs");
    all(plain.input_gradients, quiet.input_gradients, "number of input gradients");
    all(plain.gradients, quiet.gradients, "number of gradients");
    all(plain.buffers, quiet.buffers, "number of buffers that change");
    for (std::size_t i = 0; i < plain.generators.size(); ++i) {
      if (!plain.generators[i].equals(quiet.generators[i])) {
        found.push_back({fmt::format("random generator {} after the step", i),
                         "it stands at another place in its stream"});
      }
    }
    return found;
  }

  const VerifyOptions& options_;
  Thing& thing_;
  std::tuple<std::decay_t<Inputs>...> inputs_;
  std::vector<at::Tensor> captured_;
  bool made_tensors_ = false;
};

}  // namespace detail

/// Proves on your own model that checkpointing changes nothing: runs one step checkpointed and one
/// plain from the same state, and compares outputs, gradients, buffers and random generators, by
/// default bit for bit.
///
///     auto report = refrain::verify(net, x);
///     if (!report.ok()) fmt::print("{}\n", report);
///
/// `thing` is anything that can be called: a checkpointed block, function or chain, or a whole
/// model with regions inside. A step is forward and backward, from fixed gradients of all outputs.
/// Parameters' gradients, buffers and random generators come back as they were; what the code keeps
/// elsewhere (a counter, a cache) does not, and shows as a difference. Time: one checkpointed step
/// and one plain step, one more of each where tensors are made on first use or something differs.
/// Memory: copies of inputs, and three of outputs, gradients and buffers.
template <class Thing, class... Inputs>
  requires(!std::is_same_v<std::decay_t<Thing>, VerifyOptions>)
[[nodiscard]] VerifyReport verify(Thing&& thing, const Inputs&... inputs) {
  const VerifyOptions options;
  return detail::Verifier<std::remove_reference_t<Thing>, Inputs...>(options, thing, inputs...)
      .run();
}

/// As above, with a tolerance or a seed: `verify(VerifyOptions().seed(1), net, x)`.
template <class Thing, class... Inputs>
[[nodiscard]] VerifyReport verify(const VerifyOptions& options, Thing&& thing,
                                  const Inputs&... inputs) {
  return detail::Verifier<std::remove_reference_t<Thing>, Inputs...>(options, thing, inputs...)
      .run();
}

}  // namespace refrain
