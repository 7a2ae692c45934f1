// What a refusal must be.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace shardbench::test {

/// Whether a refusal is one line that contains every part.
inline testing::AssertionResult names_all(const std::string& message, const std::vector<std::string>& parts) {
  if (message.find('\n') != std::string::npos)
    return testing::AssertionFailure() << "more than a line: " << message;
  for (const std::string& part : parts)
    if (message.find(part) == std::string::npos)
      return testing::AssertionFailure() << '"' << message << "\" does not name " << part;
  return testing::AssertionSuccess();
}

}  // namespace shardbench::test
