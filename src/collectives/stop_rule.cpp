#include "src/collectives/stop_rule.hpp"

#include <algorithm>
#include <cmath>

namespace shardbench {

std::optional<std::int64_t> interval_depth(std::int64_t samples) {
  constexpr double each_side = 0.025;
  // P(Bin = i) by logarithms, because 2^-n underflows from a thousand samples on. What lies 16 standard
  // deviations below the centre is too little to count, but not so little that it underflows.
  const auto n = static_cast<double>(samples);
  const auto first = static_cast<std::int64_t>(std::max(0.0, std::floor(n / 2.0 - 8.0 * std::sqrt(n))));
  const auto i = static_cast<double>(first);
  double term =
      std::exp(std::lgamma(n + 1.0) - std::lgamma(i + 1.0) - std::lgamma(n - i + 1.0) - n * std::log(2.0));
  double below = term;
  std::int64_t depth = first;
  while (below <= each_side && depth < samples) {
    ++depth;
    term *= static_cast<double>(samples - depth + 1) / static_cast<double>(depth);
    below += term;
  }
  return depth > 0 ? std::optional(depth) : std::nullopt;
}

std::optional<double> MedianEstimate::relative_width() const {
  if (!low || !high) return std::nullopt;
  if (*high == *low) return 0.0;  // also where a coarse clock shows no time at all
  return (*high - *low) / median;
}

void SortedSamples::add(double sample) {
  samples_.insert(std::upper_bound(samples_.begin(), samples_.end(), sample), sample);
}

MedianEstimate SortedSamples::estimate() const {
  const std::size_t middle = samples_.size() / 2;
  MedianEstimate result;
  result.median =
      samples_.size() % 2 == 1 ? samples_[middle] : (samples_[middle - 1] + samples_[middle]) / 2.0;
  if (const auto depth = interval_depth(count())) {
    const auto d = static_cast<std::size_t>(*depth);
    result.low = samples_[d - 1];
    result.high = samples_[samples_.size() - d];
  }
  return result;
}

std::optional<Stop> reason_to_stop(const StopRule& rule, const SortedSamples& samples, double elapsed_s) {
  if (!rule.precision) return Stop::iterations;
  const std::optional<double> width = samples.estimate().relative_width();
  if (width && *width <= *rule.precision) return Stop::precision;
  if (elapsed_s >= rule.budget_s) return Stop::budget;
  if ((samples.count() + 1) * rule.window_iterations > rule.most_iterations) return Stop::rows;
  return std::nullopt;
}

}  // namespace shardbench
