// Seconds per layer kind: read from a file to imitate compute, or measured by a rehearsal.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/model/dimensions.hpp"
#include "src/options.hpp"
#include "src/trace/trace_file.hpp"

namespace shardbench {

enum class LayerKind { embedding, block, head };
LayerKind kind_of_layer(const ModelDims& dims, int layer);

/// Seconds that each layer kind computes, and the optimizer per step where known.
struct ComputeTimes {
  std::array<double, 3> forward{};  ///< by LayerKind
  std::array<double, 3> backward{};
  std::optional<double> optimizer;
};

/// {"embedding": {"forward": s, "backward": s}, "block": {...}, "head": {...}, "optimizer": {"step": s}}; the
/// optimizer may be left out. Throws UsageError naming the file and the missing or wrong key.
ComputeTimes parse_calibration(const Options& options);
/// The file's text. Throws UsageError when it cannot be read.
std::string read_calibration_file(const std::string& path);

/// At `flops` FLOP/s sustained: layer_flops() / flops; a look-up takes no time.
ComputeTimes times_at(const ModelDims& dims, std::int64_t tokens, double flops);

/// Medians per layer kind and direction of one rehearsed step: compute spans, and the collectives that belong
/// to the layer, each alone. Buckets, which belong to no layer, appear as kind `bucket`.
std::vector<CalibrationRow> summarise_rehearsal(const ModelDims& dims, std::span<const Event> events);

}  // namespace shardbench
