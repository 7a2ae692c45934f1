#include "src/train/modelled_copies.hpp"

#include <utility>

#include "src/model/roofline.hpp"

namespace shardbench {

void ModelledCopies::settle() {
  const auto moved = static_cast<double>(std::exchange(due_, Bytes(0)).count());
  const Hardware* const hardware = world_.hardware();
  if (hardware != nullptr && moved > 0.0)
    world_.imitate_compute(roofline_seconds({.name = "copy", .bytes = moved}, *hardware));
}

}  // namespace shardbench
