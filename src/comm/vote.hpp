// How all ranks agree to stop after the same step, without standing still for it.
#pragma once

#include <cstdint>
#include <memory>

#include "src/comm/progress.hpp"
#include "src/comm/transport.hpp"

namespace shardbench {

/// A vote is cast before a step and counted after it: its messages travel while the step runs, so that it
/// costs no synchronisation. A step's collectives have every rank wait for all others, so it never waits for
/// anyone whom the step has not waited for.
class Vote {
 public:
  Vote() = default;
  Vote(const Vote&) = delete;
  Vote& operator=(const Vote&) = delete;
  virtual ~Vote() = default;

  /// Collective, as is outcome(), alternately.
  virtual void cast(std::uint32_t ballot) = 0;
  /// The bits that any rank has cast.
  virtual std::uint32_t outcome() = 0;
};

/// Dissemination, which any n allows since a bit may be counted twice: ceil(log2 n) messages of 4 bytes.
/// The engine outlives the vote.
std::unique_ptr<Vote> make_vote(std::unique_ptr<Transport> transport, ProgressEngine& engine);

}  // namespace shardbench
