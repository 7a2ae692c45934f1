// Brings what every rank recorded to rank 0.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "src/comm/world.hpp"

namespace shardbench {

/// All calls are collective; `use` runs on rank 0 only.
class Collector {
 public:
  explicit Collector(ControlChannel& control) : control_(control) {}

  /// Calls `use(rank, values)` for every rank's values, in rank order.
  template <class T, class Use>
  void for_each_rank(std::span<const T> values, Use use) {
    // One rank at a time, so that rank 0 never holds more than one rank's trace beside its own.
    if (control_.rank() != 0) {
      control_.receive(0);
      control_.send(0, as_message<T>(values));
      return;
    }
    use(0, values);
    for (int rank = 1; rank < control_.size(); ++rank) {
      control_.send(rank, {});
      const auto received = from_message<T>(control_.receive(rank));
      use(rank, std::span<const T>(received));
    }
  }

  /// The same for structured values, as JSON.
  template <class Use>
  void for_each_rank_json(const nlohmann::json& value, Use use) {
    const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(value);
    for_each_rank<std::uint8_t>(bytes, [&](int rank, std::span<const std::uint8_t> message) {
      use(rank, nlohmann::json::from_cbor(message.begin(), message.end()));
    });
  }

 private:
  ControlChannel& control_;
};

}  // namespace shardbench
