// The decoder's arithmetic: each layer's forward and hand-written backward in terms of kernels.
#include <limits>
#include <numeric>
#include <utility>

#include "src/errors.hpp"
#include "src/model/decoder.hpp"

namespace shardbench {
namespace {

using kernels::Matrix;
using kernels::Output;

class RealMath final : public LayerMath {
 public:
  RealMath(const ModelDims& dims, std::int64_t micro_batch, RopeTables tables, kernels::Kernels& kernels)
      : dims_(dims),
        tokens_(micro_batch * dims.seq),
        attention_{.sequences = micro_batch,
                   .length = dims.seq,
                   .heads = dims.heads,
                   .kv_heads = dims.kv_heads,
                   .head_size = dims.head_size()},
        kernels_(kernels),
        tables_(std::move(tables)) {
    kernels_.rope_table(table(tables_.cosines), table(tables_.sines), dims.head_size(), rope_theta);
  }

  void embedding_forward(const Batch& batch, const WeightTable& weights, const Buffer& y) override {
    kernels_.embedding_forward(rows(y), weights.at(0), batch.inputs);
  }

  void block_forward(int layer, const WeightTable& weights, const Buffer& x, const BlockActivations& a,
                     const Buffer& y) override {
    const auto w = [&](TensorRole role) { return weights.at(tensor_index(dims_, role, layer)); };
    kernels::Kernels& k = kernels_;
    k.rms_norm_forward(rows(*a.normed1), rows(x), w(TensorRole::norm1), norm_epsilon);
    k.linear_forward(rows(*a.q), rows(*a.normed1), w(TensorRole::wq), Output::overwrite);
    k.linear_forward(rows(*a.k), rows(*a.normed1), w(TensorRole::wk), Output::overwrite);
    k.linear_forward(rows(*a.v), rows(*a.normed1), w(TensorRole::wv), Output::overwrite);
    k.rope(rows(*a.q), table(tables_.cosines), table(tables_.sines), bodies::Rotation::forward);
    k.rope(rows(*a.k), table(tables_.cosines), table(tables_.sines), bodies::Rotation::forward);
    k.attention_forward(rows(*a.attention), a.log_sum_exp->floats(), rows(*a.q), rows(*a.k), rows(*a.v),
                        attention_);
    copy(*a.x_middle, x);
    k.linear_forward(rows(*a.x_middle), rows(*a.attention), w(TensorRole::wo), Output::accumulate);

    k.rms_norm_forward(rows(*a.normed2), rows(*a.x_middle), w(TensorRole::norm2), norm_epsilon);
    k.linear_forward(rows(*a.gate), rows(*a.normed2), w(TensorRole::w1), Output::overwrite);
    k.linear_forward(rows(*a.up), rows(*a.normed2), w(TensorRole::w3), Output::overwrite);
    k.swiglu_forward(rows(*a.gated), rows(*a.gate), rows(*a.up));
    copy(y, *a.x_middle);
    k.linear_forward(rows(y), rows(*a.gated), w(TensorRole::w2), Output::accumulate);
  }

  double head_forward(const Batch& batch, const WeightTable& weights, const Buffer& x,
                      const HeadActivations& a) override {
    kernels::Kernels& k = kernels_;
    k.rms_norm_forward(rows(*a.normed), rows(x), weights.at(tensor_index(dims_, TensorRole::final_norm)),
                       norm_epsilon);
    k.linear_forward(rows(*a.logits), rows(*a.normed), weights.at(tensor_index(dims_, TensorRole::head)),
                     Output::overwrite);
    const std::span<float> losses = a.losses->floats();
    k.cross_entropy(losses, rows(*a.logits), batch.targets, 1.0F / static_cast<float>(tokens_));
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  }

  void head_backward(const WeightTable& weights, const GradientTable& gradients, const Buffer& x,
                     const HeadActivations& a, const HeadWorkspace& work, const Buffer& dx) override {
    kernels::Kernels& k = kernels_;
    const int head = tensor_index(dims_, TensorRole::head);
    const int norm = tensor_index(dims_, TensorRole::final_norm);
    k.linear_backward_weight(gradients.at(head), rows(*a.logits), rows(*a.normed));
    k.linear_backward_input(rows(*work.d_normed), rows(*a.logits), weights.at(head), Output::overwrite);
    k.fill_zero(flat(dx));
    k.rms_norm_backward(rows(dx), vector(gradients.at(norm)), work.inverse_rms->floats(),
                        rows(*work.d_normed), rows(x), weights.at(norm), norm_epsilon);
  }

  void block_backward(int layer, const WeightTable& weights, const GradientTable& gradients, const Buffer& x,
                      const BlockActivations& a, const BlockWorkspace& work, const Buffer& stream) override {
    const auto w = [&](TensorRole role) { return weights.at(tensor_index(dims_, role, layer)); };
    const auto dw = [&](TensorRole role) { return gradients.at(tensor_index(dims_, role, layer)); };
    kernels::Kernels& k = kernels_;
    const Matrix d = rows(stream);  // the residual passes it on unchanged; each half adds its share

    k.linear_backward_weight(dw(TensorRole::w2), d, rows(*a.gated));
    k.linear_backward_input(rows(*work.d_gated), d, w(TensorRole::w2), Output::overwrite);
    k.swiglu_backward(rows(*work.d_gate), rows(*work.d_up), rows(*work.d_gated), rows(*a.gate), rows(*a.up));
    k.linear_backward_weight(dw(TensorRole::w3), rows(*work.d_up), rows(*a.normed2));
    k.linear_backward_weight(dw(TensorRole::w1), rows(*work.d_gate), rows(*a.normed2));
    k.linear_backward_input(rows(*work.d_normed), rows(*work.d_up), w(TensorRole::w3), Output::overwrite);
    k.linear_backward_input(rows(*work.d_normed), rows(*work.d_gate), w(TensorRole::w1), Output::accumulate);
    k.rms_norm_backward(d, vector(dw(TensorRole::norm2)), work.inverse_rms->floats(), rows(*work.d_normed),
                        rows(*a.x_middle), w(TensorRole::norm2), norm_epsilon);

    k.linear_backward_weight(dw(TensorRole::wo), d, rows(*a.attention));
    k.linear_backward_input(rows(*work.d_attention), d, w(TensorRole::wo), Output::overwrite);
    k.attention_backward(rows(*work.dq), rows(*work.dk), rows(*work.dv), rows(*work.d_attention),
                         rows(*a.attention), a.log_sum_exp->floats(), rows(*a.q), rows(*a.k), rows(*a.v),
                         attention_);
    k.rope(rows(*work.dq), table(tables_.cosines), table(tables_.sines), bodies::Rotation::inverse);
    k.rope(rows(*work.dk), table(tables_.cosines), table(tables_.sines), bodies::Rotation::inverse);
    k.linear_backward_weight(dw(TensorRole::wv), rows(*work.dv), rows(*a.normed1));
    k.linear_backward_weight(dw(TensorRole::wk), rows(*work.dk), rows(*a.normed1));
    k.linear_backward_weight(dw(TensorRole::wq), rows(*work.dq), rows(*a.normed1));
    k.linear_backward_input(rows(*work.d_normed), rows(*work.dv), w(TensorRole::wv), Output::overwrite);
    k.linear_backward_input(rows(*work.d_normed), rows(*work.dk), w(TensorRole::wk), Output::accumulate);
    k.linear_backward_input(rows(*work.d_normed), rows(*work.dq), w(TensorRole::wq), Output::accumulate);
    k.rms_norm_backward(d, vector(dw(TensorRole::norm1)), work.inverse_rms->floats(), rows(*work.d_normed),
                        rows(x), w(TensorRole::norm1), norm_epsilon);
  }

  void embedding_backward(const Batch& batch, const GradientTable& gradients, const Buffer& dy) override {
    kernels_.embedding_backward(gradients.at(0), rows(dy), batch.inputs);
  }

 private:
  /// A buffer as one row per token.
  [[nodiscard]] Matrix rows(const Buffer& buffer) const {
    const std::span<float> values = buffer.floats();
    return {values.data(), tokens_, std::ssize(values) / tokens_};
  }
  [[nodiscard]] Matrix table(const BufferRef& buffer) const {
    return {buffer->floats().data(), dims_.seq, dims_.head_size() / 2};
  }
  static kernels::TypedView flat(const Buffer& buffer) {
    return {buffer.data(), buffer.dtype(), buffer.elements().count(), 1};
  }
  static std::span<float> vector(Matrix matrix) {
    return {matrix.data, static_cast<std::size_t>(matrix.rows)};
  }
  void copy(const Buffer& to, const Buffer& from) { kernels_.scaled_copy(flat(to), flat(from), 1.0F); }

  ModelDims dims_;
  std::int64_t tokens_;
  kernels::AttentionShape attention_;
  kernels::Kernels& kernels_;
  RopeTables tables_;
};

class TimedMath final : public LayerMath {
 public:
  TimedMath(const ModelDims& dims, std::function<void(int, Direction)> run)
      : head_layer_(dims.head_layer()), run_(std::move(run)) {}

  void embedding_forward(const Batch&, const WeightTable&, const Buffer&) override {
    run_(0, Direction::forward);
  }
  void block_forward(int layer, const WeightTable&, const Buffer&, const BlockActivations&,
                     const Buffer&) override {
    run_(layer, Direction::forward);
  }
  double head_forward(const Batch&, const WeightTable&, const Buffer&, const HeadActivations&) override {
    run_(head_layer_, Direction::forward);
    return std::numeric_limits<double>::quiet_NaN();
  }
  void head_backward(const WeightTable&, const GradientTable&, const Buffer&, const HeadActivations&,
                     const HeadWorkspace&, const Buffer&) override {
    run_(head_layer_, Direction::backward);
  }
  void block_backward(int layer, const WeightTable&, const GradientTable&, const Buffer&,
                      const BlockActivations&, const BlockWorkspace&, const Buffer&) override {
    run_(layer, Direction::backward);
  }
  void embedding_backward(const Batch&, const GradientTable&, const Buffer&) override {
    run_(0, Direction::backward);
  }

 private:
  int head_layer_;
  std::function<void(int, Direction)> run_;
};

}  // namespace

RopeTables allocate_rope_tables(const ModelDims& dims, Memory& memory, Backing backing) {
  const Elements size(dims.seq * dims.head_size() / 2);
  return {.cosines = memory.allocate(Category::workspace, DType::fp32, size, backing),
          .sines = memory.allocate(Category::workspace, DType::fp32, size, backing)};
}

std::unique_ptr<LayerMath> make_real_math(const ModelDims& dims, std::int64_t micro_batch, RopeTables tables,
                                          kernels::Kernels& kernels) {
  return std::make_unique<RealMath>(dims, micro_batch, std::move(tables), kernels);
}

std::unique_ptr<LayerMath> make_timed_math(const ModelDims& dims, std::function<void(int, Direction)> run) {
  return std::make_unique<TimedMath>(dims, std::move(run));
}

}  // namespace shardbench
