// What tests may do and programs may not: touch a buffer because it is the host's.
#pragma once

#include <span>

#include "src/device/buffer.hpp"

namespace shardbench::test {

/// A buffer of the host, read and written in place.
inline std::span<float> values_in(const Buffer& buffer) {
  return {buffer.floats().data(), static_cast<std::size_t>(buffer.floats().size())};
}

}  // namespace shardbench::test
