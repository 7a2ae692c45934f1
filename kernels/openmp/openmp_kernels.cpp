// OpenMP loops over the kernel bodies; matrix products through BLAS in panels of about a millisecond.
#include <omp.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/openmp/blas.hpp"
#include "src/errors.hpp"

namespace shardbench::kernels {
namespace {

// Rows of queries that attention handles at once: tall enough for BLAS, short enough that a tile of scores
// [query_tile, length] stays in the second-level cache at the lengths a CPU can train.
constexpr std::int64_t query_tile = 64;

// Work of one GEMM panel. A core does 30-80 GFLOP/s, so that panels end about a millisecond apart and pending
// communication is polled often enough (14 ms apart costs 40 % of the overlap, 0.25 ms costs none).
constexpr std::int64_t panel_flops = 50'000'000;
constexpr std::int64_t smallest_panel_rows = 16;

// Partial sums of `add_squares`: fixed pieces added in order make the result independent of threads.
constexpr std::int64_t sum_piece = 4096;

// bf16 weights are widened panel by panel; this bounds the panel's fp32 copy.
std::int64_t widened_panel_elements(std::int64_t widest_row) {
  return std::max<std::int64_t>(1 << 20, smallest_panel_rows * widest_row);
}

// Below this many elements waking threads costs more than they save, and on a busy machine far more.
constexpr std::int64_t parallel_elements = 16384;

template <class Function>
void for_storage(TypedView view, Function&& function) {
  if (view.dtype == DType::bf16) {
    function(reinterpret_cast<bodies::BFloat16*>(view.data));
  } else {
    function(reinterpret_cast<float*>(view.data));
  }
}

class OpenMpKernels final : public Kernels {
 public:
  OpenMpKernels(const ScratchNeeds& needs, DeviceSpan<float> scratch, std::function<void()> between_tiles)
      : threads_(needs.threads),
        scratch_(scratch.data(), static_cast<std::size_t>(scratch.size())),
        between_tiles_(std::move(between_tiles)) {
    // Without scratch only the element-wise kernels may be called: compute that is only timed needs no more.
    SHARDBENCH_ASSERT(scratch.empty() || scratch.size() >= openmp_scratch_elements(needs));
    omp_set_num_threads(threads_);
  }

  void linear_forward(Matrix y, const ProductInput& input, TypedView weight, Output output) override {
    const ConstMatrix& x = input.values;
    for_each_panel(weight, x.rows, [&](std::int64_t first, std::int64_t count, const float* panel) {
      gemm({.m = x.rows, .n = count, .k = x.columns, .beta = beta(output)}, {x.data, x.columns},
           {panel, weight.columns, Transpose::yes}, y.data + first, y.columns);
    });
  }

  void linear_backward_input(Matrix dx, const ProductInput& gradient, TypedView weight,
                             Output output) override {
    const ConstMatrix& dy = gradient.values;
    // A tensor-parallel rank may hold no rows of a small weight; then nothing below would set dx.
    if (weight.rows == 0 && output == Output::overwrite) std::fill_n(dx.data, dx.rows * dx.columns, 0.0F);
    for_each_panel(weight, dy.rows, [&](std::int64_t first, std::int64_t count, const float* panel) {
      const float panel_beta = first > 0 ? 1.0F : beta(output);
      gemm({.m = dy.rows, .n = weight.columns, .k = count, .beta = panel_beta}, {dy.data + first, dy.columns},
           {panel, weight.columns}, dx.data, dx.columns);
    });
  }

  void linear_backward_weight(Matrix d_weight, const ProductInput& gradient,
                              const ProductInput& input) override {
    const ConstMatrix& dy = gradient.values;
    const ConstMatrix& x = input.values;
    const std::int64_t rows = panel_rows(d_weight.columns, dy.rows);
    for (std::int64_t first = 0; first < d_weight.rows; first += rows) {
      const std::int64_t count = std::min(rows, d_weight.rows - first);
      gemm({.m = count, .n = x.columns, .k = dy.rows, .beta = 1.0F},
           {dy.data + first, dy.columns, Transpose::yes}, {x.data, x.columns},
           d_weight.data + first * d_weight.columns, d_weight.columns);
      between_tiles_();
    }
  }

  void embedding_forward(Matrix y, TypedView table, DeviceSpan<const std::int32_t> tokens) override {
    for_storage(table, [&](const auto* weight) {
#pragma omp parallel for schedule(static) if (y.rows * y.columns >= parallel_elements)
      for (std::int64_t row = 0; row < y.rows; ++row)
        bodies::embedding_forward(bodies::OneLane{}, y.data + row * y.columns, weight, tokens.data()[row],
                                  y.columns);
    });
    between_tiles_();
  }

  void embedding_backward(Matrix d_table, ConstMatrix dy, DeviceSpan<const std::int32_t> tokens) override {
#pragma omp parallel for schedule(static) if (dy.rows * dy.columns >= parallel_elements)
    for (std::int64_t row = 0; row < dy.rows; ++row)
      bodies::embedding_backward(bodies::OneLane{}, row, d_table.data, dy.data, tokens.data(), dy.rows,
                                 dy.columns);
    between_tiles_();
  }

  void rms_norm_forward(Matrix y, ConstMatrix x, TypedView weight, float epsilon) override {
    for_storage(weight, [&](const auto* w) {
#pragma omp parallel for schedule(static) if (x.rows * x.columns >= parallel_elements)
      for (std::int64_t row = 0; row < x.rows; ++row)
        bodies::rms_norm_forward(bodies::OneLane{}, y.data + row * x.columns, x.data + row * x.columns, w,
                                 x.columns, epsilon);
    });
    between_tiles_();
  }

  void rms_norm_backward(Matrix dx, DeviceSpan<float> d_weight, DeviceSpan<float> inverse_rms, ConstMatrix dy,
                         ConstMatrix x, TypedView weight, float epsilon) override {
    for_storage(weight, [&](const auto* w) {
#pragma omp parallel for schedule(static) if (x.rows * x.columns >= parallel_elements)
      for (std::int64_t row = 0; row < x.rows; ++row)
        bodies::rms_norm_backward_input(bodies::OneLane{}, dx.data + row * x.columns,
                                        inverse_rms.data() + row, dy.data + row * x.columns,
                                        x.data + row * x.columns, w, x.columns, epsilon);
    });
#pragma omp parallel for schedule(static) if (x.rows * x.columns >= parallel_elements)
    for (std::int64_t column = 0; column < x.columns; ++column)
      d_weight.data()[column] +=
          bodies::rms_norm_backward_weight(column, dy.data, x.data, inverse_rms.data(), x.rows, x.columns);
    between_tiles_();
  }

  void rope_table(Matrix cosines, Matrix sines, std::int64_t head_size, double theta) override {
#pragma omp parallel for schedule(static)
    for (std::int64_t position = 0; position < cosines.rows; ++position)
      for (std::int64_t pair = 0; pair < cosines.columns; ++pair) {
        const std::int64_t entry = position * cosines.columns + pair;
        bodies::rope_table_entry(cosines.data + entry, sines.data + entry, position, pair, head_size, theta);
      }
  }

  void rope(Matrix x, ConstMatrix cosines, ConstMatrix sines, bodies::Rotation rotation) override {
    const std::int64_t head_size = 2 * cosines.columns;
#pragma omp parallel for schedule(static) if (x.rows * x.columns >= parallel_elements)
    for (std::int64_t row = 0; row < x.rows; ++row) {
      const std::int64_t entry = (row % cosines.rows) * cosines.columns;
      for (std::int64_t column = 0; column < x.columns; column += head_size)
        bodies::rope(bodies::OneLane{}, x.data + row * x.columns + column, cosines.data + entry,
                     sines.data + entry, head_size, rotation);
    }
    between_tiles_();
  }

  void attention_forward(Matrix out, DeviceSpan<float> log_sum_exp, ConstMatrix q, ConstMatrix k,
                         ConstMatrix v, const AttentionShape& shape) override {
    const float scale = score_scale(shape);
    for_each_query_tile(shape, [&](const QueryTile& tile, std::span<float> scratch) {
      float* scores = scratch.data();
      const Operand keys{k.data + tile.kv_offset, k.columns, Transpose::yes};
      gemm({.m = tile.rows, .n = tile.reach, .k = shape.head_size}, {q.data + tile.q_offset, q.columns}, keys,
           scores, tile.reach);
      for (std::int64_t row = 0; row < tile.rows; ++row)
        bodies::causal_softmax(bodies::OneLane{}, scores + row * tile.reach,
                               log_sum_exp.data() + tile.lse_offset + row, tile.first + row, tile.reach,
                               scale);
      gemm({.m = tile.rows, .n = shape.head_size, .k = tile.reach}, {scores, tile.reach},
           {v.data + tile.kv_offset, v.columns}, out.data + tile.q_offset, out.columns);
    });
  }

  void attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix d_out, ConstMatrix out,
                          DeviceSpan<const float> log_sum_exp, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                          const AttentionShape& shape) override {
    const float scale = score_scale(shape);
    std::fill_n(dk.data, dk.rows * dk.columns, 0.0F);
    std::fill_n(dv.data, dv.rows * dv.columns, 0.0F);
    for_each_query_tile(shape, [&](const QueryTile& tile, std::span<float> scratch) {
      float* probabilities = scratch.data();
      float* d_scores = probabilities + tile.rows * tile.reach;
      const Operand d_out_tile{d_out.data + tile.q_offset, d_out.columns};
      gemm({.m = tile.rows, .n = tile.reach, .k = shape.head_size}, {q.data + tile.q_offset, q.columns},
           {k.data + tile.kv_offset, k.columns, Transpose::yes}, probabilities, tile.reach);
      gemm({.m = tile.rows, .n = tile.reach, .k = shape.head_size}, d_out_tile,
           {v.data + tile.kv_offset, v.columns, Transpose::yes}, d_scores, tile.reach);
      for (std::int64_t row = 0; row < tile.rows; ++row) {
        const float* o = out.data + tile.q_offset + row * out.columns;
        const float* d_o = d_out.data + tile.q_offset + row * d_out.columns;
        float delta = 0.0F;
        for (std::int64_t c = 0; c < shape.head_size; ++c) delta += o[c] * d_o[c];
        bodies::causal_softmax_backward(
            bodies::OneLane{}, probabilities + row * tile.reach, d_scores + row * tile.reach,
            log_sum_exp.data()[tile.lse_offset + row], delta, tile.first + row, tile.reach, scale);
      }
      const Operand p_transposed{probabilities, tile.reach, Transpose::yes};
      const Operand ds_transposed{d_scores, tile.reach, Transpose::yes};
      gemm({.m = tile.reach, .n = shape.head_size, .k = tile.rows, .beta = 1.0F}, p_transposed, d_out_tile,
           dv.data + tile.kv_offset, dv.columns);
      gemm({.m = tile.reach, .n = shape.head_size, .k = tile.rows, .beta = 1.0F}, ds_transposed,
           {q.data + tile.q_offset, q.columns}, dk.data + tile.kv_offset, dk.columns);
      gemm({.m = tile.rows, .n = shape.head_size, .k = tile.reach}, {d_scores, tile.reach},
           {k.data + tile.kv_offset, k.columns}, dq.data + tile.q_offset, dq.columns);
    });
  }

  void swiglu_forward(Matrix gated, ConstMatrix gate, ConstMatrix up) override {
    const std::int64_t n = gated.rows * gated.columns;
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
    for (std::int64_t i = 0; i < n; ++i) bodies::swiglu_forward(i, gated.data, gate.data, up.data);
    between_tiles_();
  }

  GatedGradients swiglu_backward(Matrix d_gate, Matrix d_up, ConstMatrix d_gated, ConstMatrix gate,
                                 ConstMatrix up) override {
    const std::int64_t n = d_gated.rows * d_gated.columns;
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
    for (std::int64_t i = 0; i < n; ++i)
      bodies::swiglu_backward(i, d_gate.data, d_up.data, d_gated.data, gate.data, up.data);
    between_tiles_();
    return {d_gate, d_up};
  }

  void cross_entropy(DeviceSpan<float> losses, Matrix logits, DeviceSpan<const std::int32_t> targets,
                     float scale) override {
    for_each_row(logits, [&](std::int64_t row) {
      bodies::cross_entropy(bodies::OneLane{}, losses.data() + row, logits.data + row * logits.columns,
                            targets.data()[row], logits.columns, scale);
    });
  }

  void row_maximum(DeviceSpan<float> largest, ConstMatrix logits) override {
    for_each_row(logits, [&](std::int64_t row) {
      largest.data()[row] =
          bodies::row_maximum(bodies::OneLane{}, logits.data + row * logits.columns, logits.columns);
    });
  }

  void row_exponentials(DeviceSpan<float> total, DeviceSpan<float> target_logit, ConstMatrix logits,
                        DeviceSpan<const float> largest, DeviceSpan<const std::int32_t> targets) override {
    for_each_row(logits, [&](std::int64_t row) {
      bodies::row_exponentials(bodies::OneLane{}, total.data() + row, target_logit.data() + row,
                               logits.data + row * logits.columns, largest.data()[row], targets.data()[row],
                               logits.columns);
    });
  }

  void cross_entropy_gradient(DeviceSpan<float> losses, Matrix logits, const RowStatistics& rows,
                              DeviceSpan<const std::int32_t> targets, float scale) override {
    for_each_row(logits, [&](std::int64_t row) {
      bodies::cross_entropy_gradient(
          bodies::OneLane{}, losses.data() + row, logits.data + row * logits.columns,
          {rows.largest.data()[row], rows.total.data()[row], rows.target_logit.data()[row]},
          targets.data()[row], logits.columns, scale);
    });
  }

  void add(Matrix y, ConstMatrix x) override {
    const std::int64_t n = y.rows * y.columns;
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
    for (std::int64_t i = 0; i < n; ++i) bodies::add(i, y.data, x.data);
  }

  void scaled_copy(TypedView destination, TypedView source, float scale) override {
    SHARDBENCH_ASSERT(destination.elements() == source.elements());
    const std::int64_t n = source.elements();
    for_storage(destination, [&](auto* to) {
      for_storage(source, [&](const auto* from) {
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
        for (std::int64_t i = 0; i < n; ++i) bodies::scaled_copy(i, to, from, scale);
      });
    });
  }

  void accumulate(TypedView destination, TypedView source) override {
    SHARDBENCH_ASSERT(destination.elements() == source.elements());
    const std::int64_t n = source.elements();
    for_storage(destination, [&](auto* to) {
      for_storage(source, [&](const auto* from) {
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
        for (std::int64_t i = 0; i < n; ++i) bodies::add(i, to, from);
      });
    });
  }

  void fill_zero(TypedView destination) override {
    const std::int64_t n = destination.elements();
    for_storage(destination, [&](auto* to) {
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
      for (std::int64_t i = 0; i < n; ++i) to[i] = {};
    });
  }

  void add_sum(DeviceSpan<double> total, DeviceSpan<const float> values) override {
    *total.data() += bodies::sum(bodies::OneLane{}, values.data(), values.size());
  }

  void add_squares(DeviceSpan<double> total, TypedView values) override {
    const std::int64_t n = values.elements();
    std::vector<double> pieces(static_cast<std::size_t>(ceil_div(n, sum_piece)));
    for_storage(values, [&](const auto* data) {
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
      for (std::int64_t piece = 0; piece < std::ssize(pieces); ++piece) {
        const std::int64_t first = piece * sum_piece;
        pieces[static_cast<std::size_t>(piece)] =
            bodies::sum_of_squares(bodies::OneLane{}, data + first, std::min(sum_piece, n - first));
      }
    });
    *total.data() += std::accumulate(pieces.begin(), pieces.end(), 0.0);
  }

  void narrow(DeviceSpan<float> to, DeviceSpan<const double> from) override {
    *to.data() = static_cast<float>(*from.data());
  }
  void widen(DeviceSpan<double> to, DeviceSpan<const float> from) override {
    *to.data() = static_cast<double>(*from.data());
  }
  void clip_factor(DeviceSpan<float> factor, DeviceSpan<const double> squares, double bound) override {
    *factor.data() = bodies::clip_factor(*squares.data(), bound);
  }

  void adamw(DeviceSpan<float> master, DeviceSpan<float> moment1, DeviceSpan<float> moment2,
             TypedView parameter, TypedView gradient, DeviceSpan<const float> gradient_factor,
             const bodies::AdamW& constants) override {
    const std::int64_t n = master.size();
    const float factor = *gradient_factor.data();
    SHARDBENCH_ASSERT(parameter.elements() == n && gradient.elements() == n);
    for_storage(parameter, [&](auto* p) {
      for_storage(gradient, [&](const auto* g) {
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
        for (std::int64_t i = 0; i < n; ++i)
          bodies::adamw(i, master.data(), moment1.data(), moment2.data(), p, g, factor, constants);
      });
    });
    between_tiles_();
  }

 private:
  /// A tile of query rows of one head: where it starts in q/out, in k/v and in log_sum_exp, and how many keys
  /// causality lets it see.
  struct QueryTile {
    std::int64_t first;
    std::int64_t rows;
    std::int64_t reach;
    std::int64_t q_offset;
    std::int64_t kv_offset;
    std::int64_t lse_offset;
  };

  /// Rows in blocks, so that a large vocabulary does not keep communication waiting.
  template <class Use>
  void for_each_row(ConstMatrix logits, Use&& use) {
    const std::int64_t columns = std::max<std::int64_t>(1, logits.columns);
    const std::int64_t block = std::max<std::int64_t>(threads_, panel_flops / 64 / columns);
    for (std::int64_t first = 0; first < logits.rows; first += block) {
      const std::int64_t end = std::min(first + block, logits.rows);
#pragma omp parallel for schedule(static) if ((end - first) * columns >= parallel_elements)
      for (std::int64_t row = first; row < end; ++row) use(row);
      between_tiles_();
    }
  }

  static float beta(Output output) { return output == Output::accumulate ? 1.0F : 0.0F; }

  static float score_scale(const AttentionShape& shape) {
    return 1.0F / std::sqrt(static_cast<float>(shape.head_size));
  }

  static std::int64_t panel_rows(std::int64_t columns, std::int64_t tokens) {
    const std::int64_t flops_per_row =
        2 * std::max<std::int64_t>(columns, 1) * std::max<std::int64_t>(tokens, 1);
    return std::max(smallest_panel_rows, panel_flops / flops_per_row);
  }

  /// Calls `use(first_row, rows, fp32_data)` for panels of the weight's rows.
  template <class Use>
  void for_each_panel(TypedView weight, std::int64_t tokens, Use&& use) {
    std::int64_t rows = panel_rows(weight.columns, tokens);
    if (weight.dtype == DType::bf16)
      rows = std::max<std::int64_t>(
          1, std::min(rows, std::ssize(scratch_) / std::max<std::int64_t>(weight.columns, 1)));
    for (std::int64_t first = 0; first < weight.rows; first += rows) {
      const std::int64_t count = std::min(rows, weight.rows - first);
      const std::int64_t offset = first * weight.columns;
      if (weight.dtype == DType::fp32) {
        use(first, count, reinterpret_cast<const float*>(weight.data) + offset);
      } else {
        const auto* source = reinterpret_cast<const bodies::BFloat16*>(weight.data) + offset;
        const std::int64_t n = count * weight.columns;
        float* widened = scratch_.data();
#pragma omp parallel for schedule(static) if (n >= parallel_elements)
        for (std::int64_t i = 0; i < n; ++i) bodies::scaled_copy(i, widened, source, 1.0F);
        use(first, count, widened);
      }
      between_tiles_();
    }
  }

  /// Runs tiles of all sequences and heads; query heads that share a kv head stay on one thread, since
  /// backward adds into that head's dk and dv. BLAS runs single-threaded inside a parallel region.
  template <class Use>
  void for_each_query_tile(const AttentionShape& shape, Use&& use) {
    const std::int64_t group = shape.heads / shape.kv_heads;
    const std::int64_t q_columns = shape.heads * shape.head_size;
    const std::int64_t kv_columns = shape.kv_heads * shape.head_size;
    const std::int64_t per_thread = 2 * query_tile * shape.length;
#pragma omp parallel for num_threads(threads_) collapse(2) \
    schedule(static) if (shape.sequences * shape.length * q_columns >= parallel_elements)
    for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence)
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        const int thread = omp_get_thread_num();
        const auto scratch = scratch_.subspan(static_cast<std::size_t>(thread * per_thread),
                                              static_cast<std::size_t>(per_thread));
        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
          for (std::int64_t first = 0; first < shape.length; first += query_tile) {
            const std::int64_t rows = std::min(query_tile, shape.length - first);
            const std::int64_t token = sequence * shape.length + first;
            use(QueryTile{.first = first,
                          .rows = rows,
                          .reach = first + rows,
                          .q_offset = token * q_columns + head * shape.head_size,
                          .kv_offset = sequence * shape.length * kv_columns + kv_head * shape.head_size,
                          .lse_offset = (sequence * shape.heads + head) * shape.length + first},
                scratch);
            if (thread == 0)
              between_tiles_();  // only the thread that entered may call the communication library
          }
      }
  }

  int threads_;
  std::span<float> scratch_;
  std::function<void()> between_tiles_;
};

}  // namespace

std::int64_t openmp_scratch_elements(const ScratchNeeds& needs) {
  return std::max(widened_panel_elements(needs.widest_weight_row),
                  2 * query_tile * needs.longest_sequence * needs.threads);
}

std::unique_ptr<Kernels> make_openmp_kernels(const ScratchNeeds& needs, DeviceSpan<float> scratch,
                                             std::function<void()> between_tiles) {
  return std::make_unique<OpenMpKernels>(needs, scratch, std::move(between_tiles));
}

}  // namespace shardbench::kernels
