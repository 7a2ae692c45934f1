// The sweep of the program `collectives`.
#pragma once

#include <string>
#include <vector>

#include "src/collectives/options.hpp"
#include "src/comm/surroundings.hpp"
#include "src/comm/world.hpp"
#include "src/errors.hpp"

namespace shardbench {

/// How many collectives are in flight at a time: enough that the next is always ready to begin when one ends;
/// each more would hold scratch of its own.
constexpr int collectives_in_flight = 2;

/// What one line of the table is about, but for the size.
struct Measurement {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::fp32;
  Reduction reduction = Reduction::sum;
};
/// In the order of the table.
std::vector<Measurement> measurements_of(Collective collective, const CollectivesOptions& options);

/// All ranks, which form the one group that is measured.
std::vector<int> everyone(const World& world);

/// Throws UsageError where `world` cannot do what `options` ask for.
void check_request(const CollectivesOptions& options, const World& world);

/// Collective. Times and checks every collective, type, reduction and size that `options` ask for, prints the
/// table at rank 0 and writes the HDF5 file. `arguments` is the command line, the program's name first.
/// Returns check_failed when a result was wrong. Throws UsageError and AgreedError alike on every rank.
ExitCode run_collectives(CollectivesOptions options, const Surroundings& surroundings,
                         const std::vector<std::string>& arguments);

}  // namespace shardbench
