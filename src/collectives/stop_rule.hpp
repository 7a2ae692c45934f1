// When the windows of a line are enough: pure arithmetic, decided by rank 0 for all.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/trace/rows.hpp"

namespace shardbench {

/// How many samples to count in from each end for a 95 % interval of the median, whatever the distribution
/// (Conover, Practical Nonparametric Statistics, section 3.2): the largest k with P(Bin(n, 1/2) < k) <= 2.5
/// %. Empty below six samples. The same numbers as `interval_depth` in analysis/shardbench/stats.py.
std::optional<std::int64_t> interval_depth(std::int64_t samples);

/// A median and its nonparametric 95 % interval, which there is from six samples on.
struct MedianEstimate {
  double median = 0.0;
  std::optional<double> low;
  std::optional<double> high;

  /// (high - low) / median; empty without an interval.
  [[nodiscard]] std::optional<double> relative_width() const;
};

/// Samples in order of size.
class SortedSamples {
 public:
  void add(double sample);
  [[nodiscard]] std::int64_t count() const { return std::ssize(samples_); }
  /// There must be a sample.
  [[nodiscard]] MedianEstimate estimate() const;

 private:
  std::vector<double> samples_;
};

/// A line ends with the window in which one of these is reached.
struct StopRule {
  std::optional<double> precision;  ///< relative width of the interval; empty: one window is all
  double budget_s = 0.0;            ///< from the line's first window on
  std::int64_t window_iterations = 1;
  std::int64_t most_iterations = 1;  ///< of all windows together
};

/// What ends the line after the windows whose times (of the slowest rank) `samples` holds; empty: one more.
std::optional<Stop> reason_to_stop(const StopRule& rule, const SortedSamples& samples, double elapsed_s);

}  // namespace shardbench
