// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "fuzz/ops/functions.hpp"
#include "fuzz/ops/in_place.hpp"
#include "fuzz/ops/indexing.hpp"
#include "fuzz/ops/linear.hpp"
#include "fuzz/ops/nn.hpp"
#include "fuzz/ops/op.hpp"
#include "fuzz/ops/pointwise.hpp"
#include "fuzz/ops/random.hpp"
#include "fuzz/ops/reduce.hpp"
#include "fuzz/ops/shape.hpp"
#include "fuzz/ops/stateful.hpp"

#include <iterator>
#include <map>
#include <stdexcept>
#include <string>

namespace refrain_fuzz {

/// Every op a program may name.
inline const Ops& all_ops() {
  static const Ops table = [] {
    Ops all;
    for (auto part : {pointwise_ops(), linear_ops(), shape_ops(), indexing_ops(), reduce_ops(),
                      nn_ops(), random_ops(), in_place_ops(), function_ops(), stateful_ops()}) {
      all.insert(all.end(), std::make_move_iterator(part.begin()),
                 std::make_move_iterator(part.end()));
    }
    return all;
  }();
  return table;
}

inline const Op& find_op(const std::string& name) {
  static const auto by_name = [] {
    std::map<std::string, const Op*> index;
    for (const auto& op : all_ops()) index[op.name] = &op;
    return index;
  }();
  const auto found = by_name.find(name);
  if (found == by_name.end()) throw std::invalid_argument("no op is called " + name);
  return *found->second;
}

}  // namespace refrain_fuzz
