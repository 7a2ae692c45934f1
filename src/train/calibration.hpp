// Seconds per layer kind: what imitated compute takes, from a file or a model, or measured by a rehearsal.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/model/roofline.hpp"
#include "src/options.hpp"
#include "src/shard/mesh.hpp"
#include "src/trace/trace_file.hpp"

namespace shardbench {

/// Seconds that a rank's imitated compute takes of a micro-batch.
struct ComputeTimes {
  std::array<double, 3> forward{};  ///< by LayerKind
  std::array<double, 3> backward{};
  double recompute = 0.0;           ///< of a block's forward once more, in backward
  std::optional<double> optimizer;  ///< of a step; empty: it depends on how many elements are updated

  [[nodiscard]] double of(LayerKind kind, Pass pass) const;
};

/// {"embedding": {"forward": s, "backward": s}, "block": {...}, "head": {...}, "optimizer": {"step": s}}; the
/// optimizer may be left out and takes no time then. A block may have "recompute"; else it is its forward's
/// share up to the last product. Throws UsageError naming the file and the missing, wrong or unknown key.
ComputeTimes parse_calibration(const Options& options);
/// The file's text. Throws UsageError when it cannot be read.
std::string read_calibration_file(const std::string& path);

/// At `flops` FLOP/s sustained: layer_flops() / flops; a look-up takes no time.
ComputeTimes times_at(const ModelDims& dims, std::int64_t tokens, double flops);

/// What a rank with these options computes of a micro-batch.
RankWork rank_work(const Options& options, const Mesh& mesh);

/// As the options say: the calibration file's, times_at() --flops, or where there is neither the roofline of
/// `hardware`; nothing takes time where that is null too (plans).
ComputeTimes compute_times(const Options& options, const Mesh& mesh, const Hardware* hardware);

/// The optimizer's in a step that updates `elements`, with such times.
double optimizer_seconds(const ComputeTimes& times, const Options& options, Elements elements,
                         const Hardware* hardware);

/// The factor exp(rank z(rank)) exp(step z(rank, step)) by which a step of a rank's imitated compute takes
/// longer (docs/contract.md); z are standard normal, so its median is 1.
double slowdown(const Jitter& jitter, std::uint64_t seed, int rank, int step);

/// Medians per layer kind and direction of one rehearsed step: compute spans, and the collectives that belong
/// to the layer, each alone. Buckets, which belong to no layer, appear as kind `bucket`.
std::vector<CalibrationRow> summarise_rehearsal(const ModelDims& dims, std::span<const Event> events);

}  // namespace shardbench
