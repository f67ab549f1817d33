// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/json_file.hpp>
#include <refrain/error.hpp>
#include <refrain/ledger.hpp>
#include <refrain/ledger_text.hpp>
#include <refrain/memory_sample.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// Ledgers as files. Not in the umbrella header: it needs nlohmann-json.
namespace refrain {

// nlohmann-json finds these by the types' namespace.

NLOHMANN_JSON_SERIALIZE_ENUM(KeptMemory::Why, {{KeptMemory::Why::Input, "input"},
                                               {KeptMemory::Why::Operator, "operator"},
                                               {KeptMemory::Why::Name, "name"},
                                               {KeptMemory::Why::Buffer, "buffer"},
                                               {KeptMemory::Why::Random, "random"},
                                               {KeptMemory::Why::Output, "output"},
                                               {KeptMemory::Why::Held, "held"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TimeSpan, begin, end)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(KeptMemory, why, what, bytes, holder, shared, made_from)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReplayRun, time, stopped_early, rebuilt, thread)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SavedByOperator, op, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RegionCall, region, number, inside, tensors, saved, saved_inputs,
                                   forgotten, draws, differentiable, threw, kept, savers, first_run,
                                   replays)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MovedMemory, region, tier, bytes, out, back)

/// Two numbers a sample: there are many.
inline void to_json(nlohmann::json& json, const MemorySample& sample) {
  json = {sample.seconds, sample.live.count()};
}
inline void from_json(const nlohmann::json& json, MemorySample& sample) {
  sample = {json.at(0).get<double>(), json.at(1).get<Bytes>()};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Ledger, calls, moved, backward_passes, seconds,
                                                device, whole, timeline)

/// A ledger as JSON: all that it holds, and in `peak` where its peak is. `tools/plot_ledger.py`
/// draws it. Bytes are bytes, times are seconds.
[[nodiscard]] inline std::string to_file_text(const Ledger& ledger) {
  nlohmann::json json = {{"format", detail::kFileFormat}, {"ledger", ledger}};
  if (const auto peak = ledger.peak()) {
    json["peak"] = {{"seconds", peak->seconds},
                    {"live", peak->live},
                    {"owner", detail::place_text(ledger, *peak)}};
  }
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Throws `Error` if the text is anything else.
[[nodiscard]] inline Ledger ledger_from_text(const std::string& text) {
  return detail::read_file<Error>("ledger", text, [](const nlohmann::json& json) {
    auto ledger = json.at("ledger").get<Ledger>();
    for (std::size_t i = 0; i < ledger.calls.size(); ++i) {
      const std::int64_t inside = ledger.calls[i].inside;
      if (inside < -1 || inside >= static_cast<std::int64_t>(i))
        throw Error("this is no ledger.", fmt::format("call {} lies inside call {}.", i, inside));
    }
    return ledger;
  });
}

/// Writes a ledger to a file. Throws `Error` if it cannot.
inline void save_ledger(const Ledger& ledger, const std::string& path) {
  detail::write_text<Error>(path, to_file_text(ledger));
}
/// Reads what `save_ledger` wrote.
[[nodiscard]] inline Ledger load_ledger(const std::string& path) {
  return ledger_from_text(detail::text_of<Error>(path));
}

/// A ledger as a trace in Chrome's format, which Perfetto (ui.perfetto.dev) and chrome://tracing
/// open: first runs, replays and backward passes as bars, live bytes as a counter.
[[nodiscard]] inline std::string to_trace(const Ledger& ledger) {
  constexpr double kMicro = 1e6;
  auto events = nlohmann::json::array();
  const auto bar = [&](const std::string& name, const char* kind, TimeSpan time,
                       std::int64_t thread, const nlohmann::json& facts) {
    events.push_back({{"name", name},
                      {"cat", kind},
                      {"ph", "X"},
                      {"pid", 1},
                      {"tid", thread},
                      {"ts", time.begin * kMicro},
                      {"dur", time.seconds() * kMicro},
                      {"args", facts}});
  };
  bar("step", "step", {0, ledger.seconds}, 0, nlohmann::json::object());
  for (const TimeSpan& pass : ledger.backward_passes)
    bar("backward", "backward", pass, 0, nlohmann::json::object());
  for (const RegionCall& call : ledger.calls) {
    bar(call.region, "first run", call.first_run, 0,
        {{"forgotten", call.forgotten}, {"keeps", call.keeps()}});
    for (const ReplayRun& replay : call.replays) {
      bar("replay of " + call.region, "replay", replay.time, replay.thread,
          {{"rebuilt", replay.rebuilt}, {"stopped_early", replay.stopped_early}});
    }
  }
  for (const MovedMemory& memory : ledger.moved) {
    const nlohmann::json facts = {{"bytes", memory.bytes}, {"tier", memory.tier}};
    bar("move of " + memory.region, "move", memory.out, 0, facts);
    for (const TimeSpan& back : memory.back)
      bar("return to " + memory.region, "move", back, 0, facts);
  }
  for (const MemorySample& sample : ledger.timeline) {
    events.push_back({{"name", "live bytes, " + ledger.device},
                      {"ph", "C"},
                      {"pid", 1},
                      {"ts", sample.seconds * kMicro},
                      {"args", {{"live", sample.live}}}});
  }
  const nlohmann::json trace = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  return trace.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Writes `to_trace` to a file. Throws `Error` if it cannot.
inline void save_trace(const Ledger& ledger, const std::string& path) {
  detail::write_text<Error>(path, to_trace(ledger));
}

}  // namespace refrain
