// expect: refrain::checkpoint needs a module holder with a forward(), a callable
// SPDX-License-Identifier: BSD-3-Clause
#include <refrain/checkpoint.hpp>

int main() { refrain::checkpoint(5); }
