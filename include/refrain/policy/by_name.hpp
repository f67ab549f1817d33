// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/policy/any_policy.hpp>
#include <refrain/policy/by_count.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <typeinfo>
#include <utility>

#if __has_include(<cxxabi.h>)
#include <cxxabi.h>
#endif

namespace refrain::policy {
namespace detail {

inline std::string readable(const std::type_info& type) {
#if __has_include(<cxxabi.h>)
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), &std::free);
  if (text) return text.get();
#endif
  return type.name();
}

/// Whether `text` fits `pattern`, where `*` stands for any run of characters and `?` for one.
inline bool fits(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t star = std::string_view::npos;
  std::size_t retry = 0;
  for (std::size_t t = 0; t < text.size();) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

/// "0 (LinearImpl), 1 (ReLUImpl), … (9 stages)"
inline std::string listed(const Chain& chain) {
  constexpr std::size_t kShown = 6;
  std::string text;
  for (std::size_t i = 0; i < chain.stages.size() && i < kShown; ++i) {
    const Stage& stage = chain.stages[i];
    text += fmt::format("{}`{}` ({})", i == 0 ? "" : ", ", stage.name, stage.type);
  }
  if (chain.stages.size() > kShown) text += fmt::format(", … ({} stages)", chain.stages.size());
  return text;
}

/// Replays the stages for which `chosen(stage)`, the last one too: they were named.
template <class Chosen>
AnyPolicy named(std::string description, Chosen chosen) {
  return {description, [description, chosen = std::move(chosen)](const Chain& chain) {
            bool found = chain.stages.empty();
            Segmentation cut = replay_where(
                chain,
                [&](std::int64_t i) {
                  const bool is = chosen(chain.stages[static_cast<std::size_t>(i)]);
                  found = found || is;
                  return is;
                },
                LastSegment::Replay);
            if (!found) {
              throw OptionError(fmt::format("policy::{} matches none of {} stages.", description,
                                            chain.stages.size()),
                                fmt::format("the stages are: {}", listed(chain)));
            }
            return cut;
          }};
}

}  // namespace detail

/// The stages of this type are replayed, each alone. `Type` is a module or its holder.
///
///     refrain::enable(*model, policy::only<Attention>());
///
/// Throws `OptionError` from `cut` if no stage has the type.
template <class Type>
[[nodiscard]] AnyPolicy only() {
  return detail::named(fmt::format("only<{}>()", detail::readable(typeid(Type))),
                       [](const Stage& stage) {
                         if constexpr (requires { typename Type::ContainedType; }) {
                           if (stage.id == typeid(typename Type::ContainedType)) return true;
                         }
                         return stage.id == typeid(Type);
                       });
}

/// The stages whose whole name fits `glob` are replayed, each alone; `*` is any text, `?` one
/// letter.
///
///     refrain::enable(*model, policy::matching("*.attn"));
///
/// Throws `OptionError` from `cut` if no name fits.
[[nodiscard]] inline AnyPolicy matching(std::string glob) {
  std::string description = fmt::format("matching(\"{}\")", glob);
  return detail::named(std::move(description), [glob = std::move(glob)](const Stage& stage) {
    return detail::fits(glob, stage.name);
  });
}

}  // namespace refrain::policy
