// What local copies, casts and sums take where a world models its hardware. Elsewhere they take their own
// time, and these calls none.
#pragma once

#include "src/comm/world.hpp"
#include "src/device/buffer.hpp"

namespace shardbench {

class ModelledCopies {
 public:
  explicit ModelledCopies(World& world) : world_(world) {}

  /// `moved`: what is read and written, all operands together.
  void add(Bytes moved) { due_ += moved; }
  void add_copy(const Buffer& to, const Buffer& from, Elements elements) {
    add(bytes_of(to.dtype(), elements) + bytes_of(from.dtype(), elements));
  }
  /// Lets the time of the copies since the last call pass, as one kernel's: frameworks batch the copies of a
  /// group. Called within the span that records them.
  void settle();

 private:
  World& world_;
  Bytes due_;
};

}  // namespace shardbench
