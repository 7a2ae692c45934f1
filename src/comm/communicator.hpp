// Collectives as the scenarios see them: asynchronous, in place, in issue order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "src/device/buffer.hpp"
#include "src/device/timeline.hpp"
#include "src/units.hpp"

namespace shardbench {

enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather };
std::string_view name_of(Collective collective);

/// How an all-reduce or reduce-scatter combines elements; an all-gather ignores it. `average` is the sum
/// divided by the group's size.
enum class Reduction { sum, product, minimum, maximum, average };
std::string_view name_of(Reduction reduction);

/// Who carries a collective out. `automatic` is resolved at issue; `nccl` and `coarse` are models that only a
/// simulated world has; `local` is a group of one (nothing is sent).
enum class Algorithm : std::uint8_t {
  automatic,
  direct,
  ring,
  doubling,
  hierarchical,
  native,
  nccl,
  coarse,
  local
};

/// Whether it is a model of a collective, not a schedule of messages.
constexpr bool is_modelled(Algorithm algorithm) {
  return algorithm == Algorithm::nccl || algorithm == Algorithm::coarse;
}
std::string_view name_of(Algorithm algorithm);

/// A collective in flight. It pins its buffer; destroying it before completion is a bug, except while an
/// exception unwinds.
class PendingCollective {
 public:
  PendingCollective() = default;
  PendingCollective(const PendingCollective&) = delete;
  PendingCollective& operator=(const PendingCollective&) = delete;
  virtual ~PendingCollective() = default;

  /// What is asked for from here on finds the result in the buffer: the host waits for it, or the device
  /// will. Idempotent.
  virtual void wait() = 0;

  /// When its turn came, and when its completion was seen. Valid after wait().
  [[nodiscard]] virtual Instant began() const = 0;
  [[nodiscard]] virtual Instant ended() const = 0;

  [[nodiscard]] virtual Algorithm algorithm() const = 0;
  /// Bytes that this rank sends for it; empty where the library does not tell (native).
  [[nodiscard]] virtual std::optional<Bytes> sent() const = 0;
};

using Pending = std::unique_ptr<PendingCollective>;

/// A group of ranks whose collectives run one after another in the order they were issued, which must be the
/// same on every member (the rule of an NCCL communicator). Two communicators over the same ranks progress
/// independently.
///
/// Every collective works in place on a whole buffer of n equal blocks, n = size():
///   all_gather      block rank() holds this rank's contribution; afterwards every block is filled
///   reduce_scatter  afterwards block rank() holds the reduction; the other blocks are undefined
///   all_reduce      any element count; afterwards the reduction everywhere
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  virtual Pending start(Collective collective, BufferRef buffer, Reduction reduction) = 0;

  Pending start(Collective collective, BufferRef buffer) {
    return start(collective, std::move(buffer), Reduction::sum);
  }

  Pending all_gather(BufferRef buffer) { return start(Collective::all_gather, std::move(buffer)); }
  Pending reduce_scatter(BufferRef buffer) { return start(Collective::reduce_scatter, std::move(buffer)); }
  Pending all_reduce(BufferRef buffer) { return start(Collective::all_reduce, std::move(buffer)); }
};

}  // namespace shardbench
