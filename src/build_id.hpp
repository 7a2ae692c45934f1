// The linker's fingerprint of this executable: equal only for the same code built the same way.
#pragma once

#include <string>

namespace shardbench {

/// The GNU build id in hexadecimal, or "unknown" where the linker left none.
std::string build_id();

}  // namespace shardbench
