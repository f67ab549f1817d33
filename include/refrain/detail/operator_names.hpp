// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Every operator of the process by its name, as of now.
class OperatorNames {
 public:
  using Handles = std::vector<c10::OperatorHandle>;

  /// `name` is "aten::add", with ".Tensor" for one overload. Empty if there is none.
  [[nodiscard]] static Handles find(const std::string& name) {
    const std::size_t space = name.find("::");
    const std::size_t dot = name.find('.', space == std::string::npos ? 0 : space);
    if (dot != std::string::npos) {
      const auto one =
          c10::Dispatcher::singleton().findSchema({name.substr(0, dot), name.substr(dot + 1)});
      return one ? Handles{*one} : Handles{};
    }
    Handles overloads;
    for (const c10::OperatorName& known : c10::Dispatcher::singleton().getAllOpNames()) {
      if (known.name != name) continue;
      if (const auto one = c10::Dispatcher::singleton().findSchema(known))
        overloads.push_back(*one);
    }
    return overloads;
  }

  [[nodiscard]] static Handles tagged(at::Tag tag) {
    Handles found;
    for (const c10::OperatorName& known : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto one = c10::Dispatcher::singleton().findSchema(known);
      if (one && one->hasTag(tag)) found.push_back(*one);
    }
    return found;
  }

  /// Names that differ from `name` in few letters, nearest first; three at most.
  [[nodiscard]] static std::vector<std::string> near(const std::string& name) {
    constexpr std::size_t kShown = 3;
    const std::size_t most = std::max<std::size_t>(2, name.size() / 4);
    std::map<std::string, std::size_t> distances;
    for (const c10::OperatorName& known : c10::Dispatcher::singleton().getAllOpNames()) {
      const std::size_t longer = std::max(known.name.size(), name.size());
      if (longer - std::min(known.name.size(), name.size()) > most) continue;
      const std::size_t apart = distance(known.name, name);
      if (apart <= most) distances.emplace(known.name, apart);
    }
    std::vector<std::pair<std::size_t, std::string>> ranked;
    ranked.reserve(distances.size());
    for (const auto& [known, apart] : distances) ranked.emplace_back(apart, known);
    std::sort(ranked.begin(), ranked.end());
    std::vector<std::string> names;
    for (std::size_t i = 0; i < std::min(kShown, ranked.size()); ++i)
      names.push_back(ranked[i].second);
    return names;
  }

 private:
  /// Letters to insert, drop or change: Levenshtein's.
  static std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j <= b.size(); ++j) {
        const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
      }
    }
    return row.back();
  }
};

}  // namespace refrain::detail
