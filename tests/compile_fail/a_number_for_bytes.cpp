// expect: conversion from
// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/bytes.hpp>

int main() {
  const refrain::Bytes budget = 6;
  return budget.count() == 6 ? 0 : 1;
}
