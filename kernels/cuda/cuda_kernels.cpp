#include "kernels/cuda/cuda_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/launch.hpp"
#include "src/errors.hpp"

namespace shardbench::kernels {
namespace {

using cuda::Operand;
using cuda::Transpose;

// Of one launch's scores, so that they stay in the second-level cache (50 MB on H100 and H200) between the
// products and the softmax.
constexpr std::int64_t most_scores = std::int64_t{4} << 20;
constexpr std::int64_t smallest_tile = 64;

class CudaKernels final : public Kernels {
 public:
  CudaKernels(std::shared_ptr<shardbench::cuda::CudaDevice> device, Memory& memory, DType parameter)
      : device_(std::move(device)),
        memory_(memory),
        dtype_(parameter),
        gemm_(device_),
        partial_sums_(
            device_->allocate(Bytes(cuda::most_partial_sums * static_cast<std::int64_t>(sizeof(double))))) {}

  ProductInput prepare(ConstMatrix values) override { return {values, rounded(values)}; }

  void linear_forward(Matrix y, const ProductInput& x, TypedView weight, Output output) override {
    if (sums_nothing(weight.columns, y, output)) return;
    const Stored left(*this, x);
    gemm_.run({.m = y.rows, .n = weight.rows, .k = weight.columns, .dtype = dtype_, .beta = beta(output)},
              left.operand(), {weight.data, weight.columns, Transpose::yes}, y.data, y.columns, stream());
  }

  void linear_backward_input(Matrix dx, const ProductInput& dy, TypedView weight, Output output) override {
    if (sums_nothing(weight.rows, dx, output)) return;
    const Stored left(*this, dy);
    gemm_.run({.m = dx.rows, .n = weight.columns, .k = weight.rows, .dtype = dtype_, .beta = beta(output)},
              left.operand(), {weight.data, weight.columns}, dx.data, dx.columns, stream());
  }

  void linear_backward_weight(Matrix d_weight, const ProductInput& dy, const ProductInput& x) override {
    const Stored left(*this, dy);
    const Stored right(*this, x);
    gemm_.run({.m = d_weight.rows, .n = d_weight.columns, .k = dy.values.rows, .dtype = dtype_, .beta = 1.0F},
              transposed(left.operand()), right.operand(), d_weight.data, d_weight.columns, stream());
  }

  void embedding_forward(Matrix y, TypedView table, DeviceSpan<const std::int32_t> tokens) override {
    cuda::embedding_forward(y, table, tokens, stream());
  }
  void embedding_backward(Matrix d_table, ConstMatrix dy, DeviceSpan<const std::int32_t> tokens) override {
    cuda::embedding_backward(d_table, dy, tokens, stream());
  }
  void rms_norm_forward(Matrix y, ConstMatrix x, TypedView weight, float epsilon) override {
    cuda::rms_norm_forward(y, x, weight, epsilon, stream());
  }
  void rms_norm_backward(Matrix dx, DeviceSpan<float> d_weight, DeviceSpan<float> inverse_rms, ConstMatrix dy,
                         ConstMatrix x, TypedView weight, float epsilon) override {
    cuda::rms_norm_backward(dx, d_weight, inverse_rms, dy, x, weight, epsilon, stream());
  }
  void rope_table(Matrix cosines, Matrix sines, std::int64_t head_size, double theta) override {
    cuda::rope_table(cosines, sines, head_size, theta, stream());
  }
  void rope(Matrix x, ConstMatrix cosines, ConstMatrix sines, bodies::Rotation rotation) override {
    cuda::rope(x, cosines, sines, rotation, stream());
  }

  void attention_forward(Matrix out, DeviceSpan<float> log_sum_exp, ConstMatrix q, ConstMatrix k,
                         ConstMatrix v, const AttentionShape& shape) override {
    const Stored queries(*this, q);
    const Stored keys(*this, k);
    const Stored values(*this, v);
    if (is_tiled(shape)) {
      cuda::tiled_attention_forward(out.data, log_sum_exp.data(),
                                    {queries.rounded(), keys.rounded(), values.rounded()}, shape, stream());
      return;
    }
    const BufferRef scores = allocate_scores(shape);
    for_each_tile(shape, [&](const Tile& tile) {
      gemm_.run(tile.product(tile.q.rows, tile.q.reach, shape.head_size, dtype_),
                queries.heads(tile.of_queries()), transposed(keys.heads(tile.of_keys())),
                scores->floats().data(), tile.q.reach, tile.q.rows * tile.q.reach, stream());
      cuda::causal_softmax(scores->floats().data(), log_sum_exp.data() + tile.lse_offset, tile.q,
                           score_scale(shape), stream());
      const Stored probabilities(*this, tile.as_matrix(*scores));
      gemm_.run(tile.product(tile.q.rows, shape.head_size, tile.q.reach, dtype_),
                probabilities.heads(tile.of_scores()), values.heads(tile.of_keys()), out.data + tile.q_offset,
                out.columns, tile.q.head_stride, stream());
    });
  }

  void attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix d_out, ConstMatrix out,
                          DeviceSpan<const float> log_sum_exp, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                          const AttentionShape& shape) override {
    const Stored queries(*this, q);
    const Stored keys(*this, k);
    const Stored values(*this, v);
    const Stored d_outs(*this, d_out);
    if (is_tiled(shape)) {
      const BufferRef row_products =
          memory_.allocate(Category::workspace, DType::fp32, Elements(log_sum_exp.size()));
      cuda::tiled_attention_backward({.dq = dq.data,
                                      .dk = dk.data,
                                      .dv = dv.data,
                                      .d_out = d_out.data,
                                      .rounded_d_out = d_outs.rounded(),
                                      .out = out.data,
                                      .log_sum_exp = log_sum_exp.data(),
                                      .row_products = row_products->floats().data()},
                                     {queries.rounded(), keys.rounded(), values.rounded()}, shape, stream());
      return;
    }
    const BufferRef scores = allocate_scores(shape);
    const BufferRef d_scores = allocate_scores(shape);
    fill_zero(view_of(dk));
    fill_zero(view_of(dv));
    for_each_tile(shape, [&](const Tile& tile) {
      const auto into_scores = tile.product(tile.q.rows, tile.q.reach, shape.head_size, dtype_);
      const std::int64_t scores_of_head = tile.q.rows * tile.q.reach;
      gemm_.run(into_scores, queries.heads(tile.of_queries()), transposed(keys.heads(tile.of_keys())),
                scores->floats().data(), tile.q.reach, scores_of_head, stream());
      gemm_.run(into_scores, d_outs.heads(tile.of_queries()), transposed(values.heads(tile.of_keys())),
                d_scores->floats().data(), tile.q.reach, scores_of_head, stream());
      cuda::causal_softmax_backward(scores->floats().data(), d_scores->floats().data(),
                                    log_sum_exp.data() + tile.lse_offset, out.data + tile.q_offset,
                                    d_out.data + tile.q_offset, tile.q, score_scale(shape), stream());
      const Stored probabilities(*this, tile.as_matrix(*scores));
      const Stored d_stored(*this, tile.as_matrix(*d_scores));
      // Query heads that share a kv head come one after the other, so that they can add to its gradients.
      auto into_keys = tile.product(tile.q.reach, shape.head_size, tile.q.rows, dtype_);
      into_keys.beta = 1.0F;
      gemm_.run(into_keys, transposed(probabilities.heads(tile.of_scores())), d_outs.heads(tile.of_queries()),
                dv.data + tile.kv_offset, dv.columns, shape.head_size, stream());
      gemm_.run(into_keys, transposed(d_stored.heads(tile.of_scores())), queries.heads(tile.of_queries()),
                dk.data + tile.kv_offset, dk.columns, shape.head_size, stream());
      gemm_.run(tile.product(tile.q.rows, shape.head_size, tile.q.reach, dtype_),
                d_stored.heads(tile.of_scores()), keys.heads(tile.of_keys()), dq.data + tile.q_offset,
                dq.columns, tile.q.head_stride, stream());
    });
  }

  void swiglu_forward(Matrix gated, ConstMatrix gate, ConstMatrix up) override {
    cuda::swiglu_forward(gated, gate, up, stream());
  }
  GatedGradients swiglu_backward(Matrix d_gate, Matrix d_up, ConstMatrix d_gated, ConstMatrix gate,
                                 ConstMatrix up) override {
    GatedGradients gradients{{d_gate, allocate_rounded(d_gate)}, {d_up, allocate_rounded(d_up)}};
    cuda::swiglu_backward(as_read(gradients.gate), as_read(gradients.up), d_gated, gate, up, stream());
    return gradients;
  }
  void cross_entropy(DeviceSpan<float> losses, Matrix logits, DeviceSpan<const std::int32_t> targets,
                     float scale) override {
    cuda::cross_entropy(losses, logits, targets, scale, stream());
  }
  void row_maximum(DeviceSpan<float> largest, ConstMatrix logits) override {
    cuda::row_maximum(largest, logits, stream());
  }
  void row_exponentials(DeviceSpan<float> total, DeviceSpan<float> target_logit, ConstMatrix logits,
                        DeviceSpan<const float> largest, DeviceSpan<const std::int32_t> targets) override {
    cuda::row_exponentials(total, target_logit, logits, largest, targets, stream());
  }
  void cross_entropy_gradient(DeviceSpan<float> losses, Matrix logits, const RowStatistics& rows,
                              DeviceSpan<const std::int32_t> targets, float scale) override {
    cuda::cross_entropy_gradient(losses, logits, rows, targets, scale, stream());
  }

  void add(Matrix y, ConstMatrix x) override { cuda::add(y, x, stream()); }
  void scaled_copy(TypedView destination, TypedView source, float scale) override {
    SHARDBENCH_ASSERT(destination.elements() == source.elements());
    cuda::scaled_copy(destination, source, scale, stream());
  }
  void accumulate(TypedView destination, TypedView source) override {
    SHARDBENCH_ASSERT(destination.elements() == source.elements());
    cuda::accumulate(destination, source, stream());
  }
  void fill_zero(TypedView destination) override {
    const auto bytes = bytes_of(destination.dtype, Elements(destination.elements())).count();
    if (bytes > 0)
      SHARDBENCH_CUDA(cudaMemsetAsync(destination.data, 0, static_cast<std::size_t>(bytes), stream()));
  }
  void add_sum(DeviceSpan<double> total, DeviceSpan<const float> values) override {
    cuda::add_sum(total, values, stream());
  }
  void add_squares(DeviceSpan<double> total, TypedView values) override {
    cuda::add_squares(total, values,
                      {reinterpret_cast<double*>(partial_sums_.get()), cuda::most_partial_sums}, stream());
  }
  void narrow(DeviceSpan<float> to, DeviceSpan<const double> from) override {
    cuda::narrow(to, from, stream());
  }
  void widen(DeviceSpan<double> to, DeviceSpan<const float> from) override {
    cuda::widen(to, from, stream());
  }
  void clip_factor(DeviceSpan<float> factor, DeviceSpan<const double> squares, double bound) override {
    cuda::clip_factor(factor, squares, bound, stream());
  }
  void adamw(DeviceSpan<float> master, DeviceSpan<float> moment1, DeviceSpan<float> moment2,
             TypedView parameter, TypedView gradient, DeviceSpan<const float> gradient_factor,
             const bodies::AdamW& constants) override {
    SHARDBENCH_ASSERT(parameter.elements() == master.size() && gradient.elements() == master.size());
    cuda::adamw(master, moment1, moment2, parameter, gradient, gradient_factor, constants, stream());
  }

 private:
  /// Of a matrix, one head's part in each of several heads' columns or blocks.
  struct Heads {
    std::int64_t offset;  ///< elements
    std::int64_t row_stride;
    std::int64_t head_stride;
  };

  /// Query rows of the query heads j, group + j, 2 group + j ... of one sequence: one for each kv head.
  struct Tile {
    cuda::QueryTile q;
    std::int64_t q_offset;
    std::int64_t kv_offset;
    std::int64_t lse_offset;
    std::int64_t kv_columns;

    [[nodiscard]] Heads of_queries() const { return {q_offset, q.row_stride, q.head_stride}; }
    [[nodiscard]] Heads of_keys() const { return {kv_offset, kv_columns, q.head_size}; }
    [[nodiscard]] Heads of_scores() const { return {0, q.reach, q.rows * q.reach}; }
    [[nodiscard]] ConstMatrix as_matrix(const Buffer& scores) const {
      return {scores.floats().data(), q.heads * q.rows, q.reach};
    }
    [[nodiscard]] cuda::Product product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) const {
      return {.m = m, .n = n, .k = k, .dtype = dtype, .batch = static_cast<int>(q.heads)};
    }
  };

  /// A matrix in the type that products read: cast where it is not in it already.
  class Stored {
   public:
    Stored(CudaKernels& kernels, const ProductInput& input)
        : dtype_(kernels.dtype_),
          columns_(input.values.columns),
          copy_(input.rounded != nullptr ? input.rounded : kernels.rounded(input.values)),
          data_(copy_ != nullptr ? copy_->data() : reinterpret_cast<const std::byte*>(input.values.data)) {}
    [[nodiscard]] Operand operand() const { return {data_, columns_}; }
    /// Where products read bf16.
    [[nodiscard]] const bodies::BFloat16* rounded() const {
      return reinterpret_cast<const bodies::BFloat16*>(data_);
    }
    [[nodiscard]] Operand heads(const Heads& heads) const {
      return {data_ + heads.offset * size_of(dtype_), heads.row_stride, Transpose::no, heads.head_stride};
    }

   private:
    DType dtype_;
    std::int64_t columns_;
    BufferRef copy_;
    const std::byte* data_;
  };

  /// The matrix in the type that products read; null where that is its own.
  BufferRef rounded(ConstMatrix matrix) {
    BufferRef copy = allocate_rounded(matrix);
    if (copy != nullptr)
      scaled_copy({copy->data(), dtype_, matrix.rows, matrix.columns}, view_of(matrix), 1.0F);
    return copy;
  }
  /// Memory for it.
  BufferRef allocate_rounded(const ConstMatrix& matrix) {
    if (dtype_ == DType::fp32) return nullptr;
    return memory_.allocate(Category::workspace, dtype_, Elements(matrix.rows * matrix.columns));
  }

  /// What products read of it.
  static TypedView as_read(const ProductInput& input) {
    const ConstMatrix& values = input.values;
    if (input.rounded == nullptr) return view_of(values);
    return {input.rounded->data(), input.rounded->dtype(), values.rows, values.columns};
  }

  /// Whether a product has no terms: of a small weight, a tensor-parallel rank may hold no rows or columns.
  /// Then it is zeros, which cuBLASLt does not make.
  bool sums_nothing(std::int64_t terms, const Matrix& result, Output output) {
    if (terms == 0 && output == Output::overwrite) fill_zero(view_of(result));
    return terms == 0;
  }

  static Operand transposed(Operand operand) {
    operand.transpose = Transpose::yes;
    return operand;
  }
  /// Only read, where the matrix is constant.
  static TypedView view_of(ConstMatrix matrix) {
    return {reinterpret_cast<std::byte*>(const_cast<float*>(matrix.data)), DType::fp32, matrix.rows,
            matrix.columns};
  }
  static float beta(Output output) { return output == Output::accumulate ? 1.0F : 0.0F; }
  static float score_scale(const AttentionShape& shape) {
    return 1.0F / std::sqrt(static_cast<float>(shape.head_size));
  }

  /// Tensor cores take fp32 only shortened, and heads only in whole pieces; else scores go through memory.
  [[nodiscard]] bool is_tiled(const AttentionShape& shape) const {
    return dtype_ == DType::bf16 && cuda::has_tiled_attention(shape);
  }

  static std::int64_t tile_rows(const AttentionShape& shape) {
    const std::int64_t rows = most_scores / (shape.kv_heads * shape.length) / smallest_tile * smallest_tile;
    return std::min(shape.length, std::max(rows, smallest_tile));
  }
  BufferRef allocate_scores(const AttentionShape& shape) {
    return memory_.allocate(Category::workspace, DType::fp32,
                            Elements(shape.kv_heads * tile_rows(shape) * shape.length));
  }

  template <class Use>
  void for_each_tile(const AttentionShape& shape, Use&& use) {
    const std::int64_t group = shape.heads / shape.kv_heads;
    const std::int64_t q_columns = shape.heads * shape.head_size;
    const std::int64_t kv_columns = shape.kv_heads * shape.head_size;
    const std::int64_t most_rows = tile_rows(shape);
    for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence)
      for (std::int64_t first = 0; first < shape.length; first += most_rows)
        for (std::int64_t head = 0; head < group; ++head) {
          const std::int64_t rows = std::min(most_rows, shape.length - first);
          use(Tile{.q = {.first = first,
                         .rows = rows,
                         .reach = first + rows,
                         .heads = shape.kv_heads,
                         .head_size = shape.head_size,
                         .row_stride = q_columns,
                         .head_stride = group * shape.head_size,
                         .head_stride_lse = group * shape.length},
                   .q_offset = (sequence * shape.length + first) * q_columns + head * shape.head_size,
                   .kv_offset = sequence * shape.length * kv_columns,
                   .lse_offset = (sequence * shape.heads + head) * shape.length + first,
                   .kv_columns = kv_columns});
        }
  }

  [[nodiscard]] cudaStream_t stream() const { return device_->compute(); }

  std::shared_ptr<shardbench::cuda::CudaDevice> device_;
  Memory& memory_;
  DType dtype_;
  cuda::Gemm gemm_;
  std::shared_ptr<std::byte> partial_sums_;
};

}  // namespace

std::unique_ptr<Kernels> make_cuda_kernels(std::shared_ptr<shardbench::cuda::CudaDevice> device,
                                           Memory& memory, DType parameter) {
  return std::make_unique<CudaKernels>(std::move(device), memory, parameter);
}

}  // namespace shardbench::kernels
