// Compute that only takes time: slices of sleep, between which pending collectives advance.
#pragma once

#include <cstdint>
#include <functional>

namespace shardbench {

/// What imitated compute asks of its world.
struct ImitationHooks {
  std::function<double()> now;
  std::function<void(double)> sleep;
  std::function<void()> poll;                  ///< between slices
  std::function<bool()> collective_under_way;  ///< asked before each slice; only with contention
};

/// Lets `seconds` of compute pass. A slice that begins while a collective is under way gets
/// 1/(1 + contention) of its length done.
void imitate_compute(double seconds, double contention, const ImitationHooks& hooks);

/// How often pending collectives can advance during compute of that length.
std::int64_t polls_per_layer(double seconds);

}  // namespace shardbench
