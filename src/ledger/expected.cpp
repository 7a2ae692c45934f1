#include "src/ledger/expected.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/ledger/formulas.hpp"

namespace shardbench {
namespace {

/// Bytes per element of each resting category (docs/ledger.md).
struct BytesPerElement {
  std::int64_t parameters;
  std::int64_t gradients;
  std::int64_t optimizer;
};

BytesPerElement bytes_per_element(const Options& options) {
  if (options.param_dtype == DType::fp32) return {4, 4, 8};  // the parameter is the master
  return {2, options.fp32_grad_accum == Fp32Accumulation::on ? 6 : 2, 12};
}

Elements count(std::span<const TensorInfo> tensors) {
  Elements sum;
  for (const TensorInfo& t : tensors) sum += t.elements();
  return sum;
}

double share(int ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }

/// Elements of each kind of resting state, as counted here or as the textbook divides them.
template <class Count>
struct Held {
  Count parameters;
  Count gradients;
  Count optimizer;
};

ExpectedLedger static_part(const Options& options, const Held<Elements>& held, const Held<double>& textbook) {
  const BytesPerElement per = bytes_per_element(options);
  ExpectedLedger ledger;
  ledger.parameters = Bytes(per.parameters * held.parameters.count());
  ledger.gradients = Bytes(per.gradients * held.gradients.count());
  ledger.optimizer = Bytes(per.optimizer * held.optimizer.count());
  ledger.textbook_static_bytes = static_cast<double>(per.parameters) * textbook.parameters +
                                 static_cast<double>(per.gradients) * textbook.gradients +
                                 static_cast<double>(per.optimizer) * textbook.optimizer;
  return ledger;
}

ExpectedCollective clipping(int ranks) {
  return {.axis = Axis::world,
          .collective = Collective::all_reduce,
          .phase = Phase::optimizer,
          .dtype = DType::fp32,
          .group_size = ranks,
          .count = 1,
          .size = Elements(1),
          .padding = Elements(0)};
}

/// Sums over the expected or measured collectives that one ledger row covers, all of one group size. Volumes
/// stay whole numbers until the end: S(n-1)/n, twice that for an all-reduce, is what the
/// algorithm-independent definition says a rank must send.
class Sums {
 public:
  void add(Collective collective, int group_size, std::int64_t calls, Elements size, Bytes bytes) {
    const Exact::Wide times = collective == Collective::all_reduce ? 2 : 1;
    group_size_ = group_size;
    count_ += calls;
    size_ += size.count();
    elements_ += times * size.count();
    bytes_ += times * bytes.count();
  }

  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] double elements() const { return volume(elements_); }
  [[nodiscard]] double bytes() const { return volume(bytes_); }

 private:
  [[nodiscard]] double volume(Exact::Wide moved) const {
    return Exact{moved * (group_size_ - 1), group_size_}.value();
  }

  int group_size_ = 1;
  std::int64_t count_ = 0;
  std::int64_t size_ = 0;
  Exact::Wide elements_ = 0;
  Exact::Wide bytes_ = 0;
};

struct Comparison {
  Sums expected;
  Sums padding;
  Sums measured;
};

/// Collects what `covers` selects on both sides.
template <class Covers>
Comparison compare(const ExpectedLedger& expected, const StepTotals& totals, Covers covers) {
  Comparison c;
  for (const ExpectedCollective& e : expected.collectives) {
    if (!covers(e.axis, e.collective, e.phase)) continue;
    c.expected.add(e.collective, e.group_size, e.count, e.size, bytes_of(e.dtype, e.size));
    c.padding.add(e.collective, e.group_size, 0, e.padding, bytes_of(e.dtype, e.padding));
  }
  for (const auto& [key, t] : totals) {
    const auto& [axis, collective, phase] = key;
    if (!covers(axis, collective, phase)) continue;
    c.measured.add(collective, t.group_size, t.count, t.size, t.bytes);
  }
  return c;
}

class Rows {
 public:
  void add(Axis axis, std::string quantity, double expected, double measured, double padding,
           std::string unit) {
    rows_.push_back({axis, std::move(quantity), expected, measured, padding, std::move(unit)});
  }
  void count_and_size(Axis axis, const std::string& name, const Comparison& c) {
    add(axis, name + "_count", static_cast<double>(c.expected.count()),
        static_cast<double>(c.measured.count()), 0.0, "count");
    add(axis, name + "_size", static_cast<double>(c.expected.size()), static_cast<double>(c.measured.size()),
        static_cast<double>(c.padding.size()), "elements");
  }
  std::vector<LedgerRow> take() { return std::move(rows_); }

 private:
  std::vector<LedgerRow> rows_;
};

}  // namespace

ExpectedLedger expected_ddp(const Options& options, std::span<const TensorInfo> tensors, std::int64_t buckets,
                            int ranks) {
  const Elements psi = count(tensors);
  const auto whole = static_cast<double>(psi.count());
  ExpectedLedger ledger = static_part(options, {psi, psi, psi}, {whole, whole, whole});
  ledger.collectives.push_back({.axis = Axis::dp,
                                .collective = Collective::all_reduce,
                                .phase = Phase::backward,
                                .dtype = options.reduce_dtype,
                                .group_size = ranks,
                                .count = buckets,
                                .size = psi,
                                .padding = Elements(0)});
  ledger.textbook_volume_elements = 2.0 * static_cast<double>(psi.count()) * share(ranks);
  return ledger;
}

namespace {

enum class Gradients { whole, sharded };

ExpectedLedger expected_buckets(const Options& options, std::span<const TensorInfo> tensors,
                                std::span<const GroupLayout> layouts, int rank, Gradients gradients) {
  const Elements psi = count(tensors);
  const int ranks = layouts.front().parts();
  Elements owned;
  Elements padding;
  for (const GroupLayout& layout : layouts) {
    owned += total(layout.slices(rank));
    padding += layout.gathered() - layout.real();
  }
  const auto whole = static_cast<double>(psi.count());
  const double shard = whole / ranks;
  const bool sharded = gradients == Gradients::sharded;
  ExpectedLedger ledger =
      static_part(options, {psi, sharded ? owned : psi, owned}, {whole, sharded ? shard : whole, shard});
  ledger.stage = sharded ? 2 : 1;
  ledger.parameters_padding = bytes_of(options.param_dtype, padding);

  const auto buckets = static_cast<std::int64_t>(layouts.size());
  const std::int64_t reductions = sharded ? options.grad_accum : 1;
  ledger.collectives.push_back({.axis = Axis::dp,
                                .collective = Collective::reduce_scatter,
                                .phase = Phase::backward,
                                .dtype = options.reduce_dtype,
                                .group_size = ranks,
                                .count = reductions * buckets,
                                .size = reductions * psi,
                                .padding = reductions * padding});
  const bool overlaps = options.parameter_gather == ParameterGather::overlap;
  ledger.collectives.push_back({.axis = Axis::dp,
                                .collective = Collective::all_gather,
                                .phase = overlaps ? Phase::forward : Phase::optimizer,
                                .dtype = options.param_dtype,
                                .group_size = ranks,
                                .count = buckets,
                                .size = psi,
                                .padding = padding});
  if (options.clip > 0.0) ledger.collectives.push_back(clipping(ranks));
  ledger.textbook_volume_elements = static_cast<double>(reductions + 1) * whole * share(ranks);
  return ledger;
}

}  // namespace

ExpectedLedger expected_zero1(const Options& options, std::span<const TensorInfo> tensors,
                              std::span<const GroupLayout> layouts, int rank) {
  return expected_buckets(options, tensors, layouts, rank, Gradients::whole);
}

ExpectedLedger expected_zero2(const Options& options, std::span<const TensorInfo> tensors,
                              std::span<const GroupLayout> layouts, int rank) {
  return expected_buckets(options, tensors, layouts, rank, Gradients::sharded);
}

ExpectedLedger expected_zero3(const Options& options, std::span<const TensorInfo> tensors,
                              const Grouping& grouping, std::span<const GroupLayout> layouts,
                              const Mesh& mesh) {
  const Elements psi = count(tensors);
  const int ranks = layouts.front().parts();
  const std::int64_t accumulation = options.grad_accum;

  Elements held;
  Elements forward_padding;
  Elements backward;
  Elements backward_padding;
  std::int64_t backward_gathers = 0;
  for (std::size_t g = 0; g < layouts.size(); ++g) {
    const GroupLayout& layout = layouts[g];
    const Elements padding = layout.gathered() - layout.real();
    held += total(layout.slices(mesh.dp_index));
    forward_padding += padding;
    const bool root = options.wrap == Wrap::root && g == 0;
    const bool last = options.wrap == Wrap::blocks && g + 1 == layouts.size();
    const bool kept = root || options.reshard == ReshardAfterForward::none ||
                      (options.reshard == ReshardAfterForward::blocks && last);
    if (kept) continue;
    ++backward_gathers;
    backward += layout.real();
    backward_padding += padding;
  }

  // Of the declared model, matrices are divided by tp and norms are not.
  double share_of_tp = 0.0;
  for (const TensorInfo& t : declare_tensors(options.dims))
    share_of_tp += static_cast<double>(t.elements().count()) / (t.is_norm() ? 1 : mesh.tp);
  const double shard = share_of_tp / ranks;
  ExpectedLedger ledger = static_part(options, {held, held, held}, {shard, shard, shard});
  ledger.stage = 3;
  const auto groups = static_cast<std::int64_t>(grouping.groups.size());
  const auto expect = [&](Collective collective, Phase phase, DType dtype, std::int64_t calls, Elements size,
                          Elements padding) {
    ledger.collectives.push_back({.axis = Axis::dp,
                                  .collective = collective,
                                  .phase = phase,
                                  .dtype = dtype,
                                  .group_size = ranks,
                                  .count = accumulation * calls,
                                  .size = accumulation * size,
                                  .padding = accumulation * padding});
  };
  expect(Collective::all_gather, Phase::forward, options.param_dtype, groups, psi, forward_padding);
  expect(Collective::all_gather, Phase::backward, options.param_dtype, backward_gathers, backward,
         backward_padding);
  expect(Collective::reduce_scatter, Phase::backward, options.reduce_dtype, groups, psi, forward_padding);
  if (options.clip > 0.0) ledger.collectives.push_back(clipping(ranks * mesh.tp));
  ledger.textbook_volume_elements = 3.0 * static_cast<double>(accumulation) * share_of_tp * share(ranks);
  return ledger;
}

ExpectedLedger expected_mesh2d(ExpectedLedger ledger, const Options& options, Elements resting_norms,
                               int tp) {
  if (tp == 1) return ledger;
  const std::int64_t accumulation = options.grad_accum;
  const std::int64_t blocks = options.dims.layers;
  const std::int64_t per_pass = 2 * blocks + 1;
  const Elements tokens(options.micro_batch * options.dims.seq);
  const bool cuts_sequence = options.sequence_parallel == SequenceParallel::on;
  const auto expect = [&](Collective collective, Phase phase, DType dtype, std::int64_t calls,
                          Elements size) {
    if (calls == 0) return;
    ledger.collectives.push_back({.axis = Axis::tp,
                                  .collective = collective,
                                  .phase = phase,
                                  .dtype = dtype,
                                  .group_size = tp,
                                  .count = calls,
                                  .size = size,
                                  .padding = Elements(0)});
  };
  const auto activations = [&](Collective collective, Phase phase, std::int64_t calls) {
    expect(collective, phase, options.param_dtype, accumulation * calls,
           accumulation * calls * options.dims.hidden * tokens);
  };
  const bool recomputes = options.recompute == Recompute::full;
  if (cuts_sequence) {
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      const bool again = phase == Phase::backward && recomputes;
      activations(Collective::all_gather, phase, per_pass + (again ? 2 * blocks : 0));
      activations(Collective::reduce_scatter, phase, per_pass + (again ? blocks : 0));
    }
    expect(Collective::all_reduce, Phase::backward, options.param_dtype, per_pass, resting_norms);
  } else {
    activations(Collective::all_reduce, Phase::forward, per_pass);
    activations(Collective::all_reduce, Phase::backward, per_pass + (recomputes ? blocks : 0));
  }
  expect(Collective::all_reduce, Phase::forward, DType::fp32, 3 * accumulation, 3 * accumulation * tokens);
  return ledger;
}

std::vector<LedgerRow> ledger_rows(const ExpectedLedger& e, const StaticBytes& held,
                                   const StepTotals& totals) {
  Rows rows;
  const auto bytes = [&](const char* quantity, Bytes expected, Bytes measured, Bytes padding) {
    rows.add(Axis::world, quantity, static_cast<double>(expected.count()),
             static_cast<double>(measured.count()), static_cast<double>(padding.count()), "bytes");
  };
  bytes("parameters_bytes", e.parameters, held.parameters, e.parameters_padding);
  bytes("gradients_bytes", e.gradients, held.gradients, Bytes(0));
  bytes("optimizer_bytes", e.optimizer, held.optimizer, Bytes(0));
  const Bytes all = held.parameters + held.gradients + held.optimizer;
  bytes("static_bytes", e.parameters + e.gradients + e.optimizer, all, e.parameters_padding);
  rows.add(Axis::world, "textbook_static_bytes", e.textbook_static_bytes, static_cast<double>(all.count()),
           static_cast<double>(all.count()) - e.textbook_static_bytes, "bytes");

  for (const Axis axis : {Axis::dp, Axis::tp, Axis::world}) {
    const auto on_axis = [axis](Collective kind) {
      return [axis, kind](Axis a, Collective c, Phase) { return a == axis && c == kind; };
    };
    const auto all_of_axis = compare(e, totals, [axis](Axis a, Collective, Phase) { return a == axis; });
    if (axis != Axis::dp && all_of_axis.expected.count() == 0 && all_of_axis.measured.count() == 0) continue;
    for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer})
      rows.count_and_size(axis, fmt::format("all_gather_{}", name_of(phase)),
                          compare(e, totals, [axis, phase](Axis a, Collective c, Phase p) {
                            return a == axis && c == Collective::all_gather && p == phase;
                          }));
    for (const Collective kind : {Collective::reduce_scatter, Collective::all_reduce})
      rows.count_and_size(axis, std::string(name_of(kind)), compare(e, totals, on_axis(kind)));
    for (const Collective kind :
         {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
      const Comparison c = compare(e, totals, on_axis(kind));
      rows.add(axis, fmt::format("{}_elements", name_of(kind)), c.expected.elements(), c.measured.elements(),
               c.padding.elements(), "elements");
    }
    rows.add(axis, "volume_elements", all_of_axis.expected.elements(), all_of_axis.measured.elements(),
             all_of_axis.padding.elements(), "elements");
    rows.add(axis, "volume_bytes", all_of_axis.expected.bytes(), all_of_axis.measured.bytes(),
             all_of_axis.padding.bytes(), "bytes");
    if (axis == Axis::dp)
      rows.add(axis, "textbook_volume_elements", e.textbook_volume_elements, all_of_axis.measured.elements(),
               all_of_axis.measured.elements() - e.textbook_volume_elements, "elements");
  }
  return rows.take();
}

LedgerRow peak_row(Bytes expected, Bytes measured) {
  return {Axis::world,
          "textbook_peak_bytes",
          static_cast<double>(expected.count()),
          static_cast<double>(measured.count()),
          static_cast<double>((measured - expected).count()),
          "bytes"};
}

const LedgerRow* first_mismatch(std::span<const LedgerRow> rows) {
  for (const LedgerRow& row : rows) {
    if (row.quantity.starts_with("textbook")) continue;
    const double wanted = row.expected + row.padding;
    // Only volumes carry a fraction (n-1)/n; counts, sizes and bytes held are whole and compare exactly.
    const bool fractional = row.quantity.ends_with("_elements") || row.quantity == "volume_bytes";
    if (std::abs(row.measured - wanted) > (fractional ? 1e-12 * std::max(1.0, wanted) : 0.0)) return &row;
  }
  return nullptr;
}

}  // namespace shardbench
