// Point-to-point messages between the ranks of one group: all that a schedule needs from a network.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace shardbench {

/// A set of messages in flight. Buffers must stay valid until it has completed.
class MessageSet {
 public:
  MessageSet() = default;
  MessageSet(const MessageSet&) = delete;
  MessageSet& operator=(const MessageSet&) = delete;
  virtual ~MessageSet() = default;

  virtual void send(int peer, int tag, std::span<const std::byte> message) = 0;
  virtual void receive(int peer, int tag, std::span<std::byte> message) = 0;
  /// True once all messages of the set are done; the set is then empty and can be used again.
  virtual bool test() = 0;
};

/// Messages with equal peer and tag arrive in the order they were sent.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  virtual std::unique_ptr<MessageSet> message_set() = 0;
};

}  // namespace shardbench
