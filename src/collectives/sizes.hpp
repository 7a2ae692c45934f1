// How large a collective of so many bytes really is, and what its time is worth: nccl-tests' rules.
#pragma once

#include "src/comm/communicator.hpp"
#include "src/units.hpp"

namespace shardbench {

/// One collective of the sweep.
struct SizedCollective {
  Elements buffer;  ///< of the whole buffer, n blocks
  Elements count;   ///< the column `count`: elements per rank, for an all-reduce of the whole buffer
  Bytes size;       ///< the column `size`: S, the bytes of the whole buffer
};

/// The collective that a size of `requested` bytes stands for with n = `ranks`. An all-reduce takes whole
/// elements; the other two n blocks, rounded down to multiples of 16 bytes.
SizedCollective sized(Collective collective, DType dtype, Bytes requested, int ranks);

/// GB/s (1e9): S over the time.
double algorithm_bandwidth(Bytes size, double seconds);

/// The factor from algorithm to bus bandwidth with n = `ranks`: 2(n-1)/n for an all-reduce, else (n-1)/n.
double bus_factor(Collective collective, int ranks);

}  // namespace shardbench
