// Text for the user, which must never be the reason why a run fails.
#pragma once

#include <cstdio>
#include <string>

namespace shardbench {

/// Writes and flushes. A reader that has gone, or a full disk behind stdout, loses the text but nothing else.
inline void say(std::FILE* stream, const std::string& text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace shardbench
