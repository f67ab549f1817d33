// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>

namespace support {

/// Runs `work`, expects an `Error` out of it, gives back its text.
template <class Error, class Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type was thrown: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// Expects `work` to throw an `Error` whose text holds each of `parts`.
template <class Error, class Work>
void expect_says(std::initializer_list<const char*> parts, Work&& work) {
  const auto text = message_of<Error>(work);
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
  }
}

}  // namespace support
