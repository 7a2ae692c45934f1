#include <algorithm>

#include "src/comm/world.hpp"
#include "src/errors.hpp"

namespace shardbench {

std::vector<std::byte> broadcast(ControlChannel& channel, std::vector<std::byte> message) {
  // Binomial tree: in round `distance`, the first `distance` ranks hold the message and pass it on.
  for (int distance = 1; distance < channel.size(); distance *= 2) {
    if (channel.rank() < distance) {
      if (channel.rank() + distance < channel.size()) channel.send(channel.rank() + distance, message);
    } else if (channel.rank() < 2 * distance) {
      message = channel.receive(channel.rank() - distance);
    }
  }
  return message;
}

std::vector<std::vector<std::byte>> gather(ControlChannel& channel, std::span<const std::byte> message) {
  // One rank at a time, on request: rank 0 never holds more than it asked for, however many ranks there are.
  std::vector<std::vector<std::byte>> messages;
  if (channel.rank() != 0) {
    channel.receive(0);
    channel.send(0, message);
    return messages;
  }
  messages.emplace_back(message.begin(), message.end());
  for (int from = 1; from < channel.size(); ++from) {
    channel.send(from, {});
    messages.push_back(channel.receive(from));
  }
  return messages;
}

std::vector<double> sum(ControlChannel& channel, std::vector<double> values) {
  const auto contributions = gather(channel, as_message<double>(values));
  for (std::size_t rank = 1; rank < contributions.size(); ++rank) {
    const auto other = from_message<double>(contributions[rank]);
    std::transform(values.begin(), values.end(), other.begin(), values.begin(), std::plus<>{});
  }
  const auto bytes = as_message<double>(values);
  return from_message<double>(broadcast(channel, {bytes.begin(), bytes.end()}));
}

double maximum(ControlChannel& channel, double value) {
  const auto contributions = gather(channel, as_message<double>(std::span(&value, 1)));
  for (const auto& other : contributions) value = std::max(value, from_message<double>(other).front());
  const auto bytes = as_message<double>(std::span<const double>(&value, 1));
  return from_message<double>(broadcast(channel, {bytes.begin(), bytes.end()})).front();
}

std::string agree_with_root(ControlChannel& channel, const std::function<std::string()>& work) {
  // The first character says how it went: done, usage error, run-time error.
  std::string outcome = "d";
  if (channel.rank() == 0) {
    try {
      outcome += work();
    } catch (const UsageError& error) {
      outcome = fmt::format("u{}", error.what());
    } catch (const RunError& error) {
      outcome = fmt::format("e{}", error.what());
    }
  }
  const auto bytes = as_message<char>(outcome);
  const auto heard = from_message<char>(broadcast(channel, {bytes.begin(), bytes.end()}));
  std::string text(heard.begin() + 1, heard.end());
  if (heard.front() == 'u') throw UsageError(text);
  if (heard.front() == 'e') throw AgreedError(text);
  return text;
}

void barrier(ControlChannel& channel) {
  // Dissemination: after round k everyone has heard from 2^k ranks before it.
  for (int distance = 1; distance < channel.size(); distance *= 2) {
    channel.send((channel.rank() + distance) % channel.size(), {});
    channel.receive((channel.rank() - distance + channel.size()) % channel.size());
  }
}

}  // namespace shardbench
