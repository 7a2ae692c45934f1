// The decoder's arithmetic: each piece of a layer's forward and hand-written backward in terms of kernels.
#include <utility>

#include "src/errors.hpp"
#include "src/model/decoder.hpp"

namespace shardbench {
namespace {

using kernels::Matrix;
using kernels::Output;

class RealMath final : public LayerMath {
 public:
  RealMath(const ModelDims& dims, const LocalDims& local, std::int64_t micro_batch, RopeTables tables,
           kernels::Kernels& kernels)
      : dims_(dims),
        local_(local),
        tokens_(micro_batch * dims.seq),
        attention_{.sequences = micro_batch,
                   .length = dims.seq,
                   .heads = local.heads,
                   .kv_heads = local.kv_heads,
                   .head_size = dims.head_size()},
        kernels_(kernels),
        tables_(std::move(tables)) {
    kernels_.rope_table(table(tables_.cosines), table(tables_.sines), dims.head_size(), rope_theta);
  }

  void embedding_forward(const DeviceBatch& batch, const WeightTable& weights, const Buffer& y) override {
    kernels_.embedding_forward(stream(y), weights.at(0), batch.inputs);
  }

  void norm_forward(int norm, const WeightTable& weights, const Buffer& x, const Buffer& y) override {
    kernels_.rms_norm_forward(stream(y), stream(x), weights.at(norm), norm_epsilon);
  }

  void attention_forward(int layer, const WeightTable& weights, const BlockActivations& a) override {
    const auto w = [&](TensorRole role) { return weights.at(tensor_index(dims_, role, layer)); };
    kernels::Kernels& k = kernels_;
    {
      const auto normed = k.prepare(stream(*a.normed1));
      k.linear_forward(queries(a.q), normed, w(TensorRole::wq), Output::overwrite);
      k.linear_forward(keys(a.k), normed, w(TensorRole::wk), Output::overwrite);
      k.linear_forward(keys(a.v), normed, w(TensorRole::wv), Output::overwrite);
    }
    k.rope(queries(a.q), table(tables_.cosines), table(tables_.sines), bodies::Rotation::forward);
    k.rope(keys(a.k), table(tables_.cosines), table(tables_.sines), bodies::Rotation::forward);
    k.attention_forward(queries(a.attention), a.log_sum_exp->floats(), queries(a.q), keys(a.k), keys(a.v),
                        attention_);
  }

  void attention_output(int layer, const WeightTable& weights, const BlockActivations& a, const Buffer& y,
                        Output output) override {
    kernels_.linear_forward(stream(y), queries(a.attention),
                            weights.at(tensor_index(dims_, TensorRole::wo, layer)), output);
  }

  void mlp_forward(int layer, const WeightTable& weights, const BlockActivations& a) override {
    const auto w = [&](TensorRole role) { return weights.at(tensor_index(dims_, role, layer)); };
    const auto normed = kernels_.prepare(stream(*a.normed2));
    kernels_.linear_forward(inner(a.gate), normed, w(TensorRole::w1), Output::overwrite);
    kernels_.linear_forward(inner(a.up), normed, w(TensorRole::w3), Output::overwrite);
    kernels_.swiglu_forward(inner(a.gated), inner(a.gate), inner(a.up));
  }

  void mlp_output(int layer, const WeightTable& weights, const BlockActivations& a, const Buffer& y,
                  Output output) override {
    kernels_.linear_forward(stream(y), inner(a.gated), weights.at(tensor_index(dims_, TensorRole::w2, layer)),
                            output);
  }

  void logits_forward(const WeightTable& weights, const HeadActivations& a) override {
    kernels_.linear_forward(logits(a), stream(*a.normed), weights.at(tensor_index(dims_, TensorRole::head)),
                            Output::overwrite);
  }

  void loss(const DeviceBatch& batch, const HeadActivations& a, DeviceSpan<double> sum) override {
    kernels_.cross_entropy(a.losses->floats(), logits(a), batch.targets, mean_scale());
    kernels_.add_sum(sum, a.losses->floats());
  }

  void largest_logits(const HeadActivations& a, const RowStatistics& rows) override {
    kernels_.row_maximum(rows.largest->floats(), logits(a));
  }

  void exponentials(const DeviceBatch& batch, const HeadActivations& a, const RowStatistics& rows) override {
    kernels_.row_exponentials(rows.total->floats(), rows.target_logit->floats(), logits(a),
                              rows.largest->floats(), batch.targets);
  }

  void loss(const DeviceBatch& batch, const HeadActivations& a, const RowStatistics& rows,
            DeviceSpan<double> sum) override {
    kernels_.cross_entropy_gradient(a.losses->floats(), logits(a),
                                    {.largest = rows.largest->floats(),
                                     .total = rows.total->floats(),
                                     .target_logit = rows.target_logit->floats()},
                                    batch.targets, mean_scale());
    kernels_.add_sum(sum, a.losses->floats());
  }

  void head_backward(const WeightTable& weights, const GradientTable& gradients, const HeadActivations& a,
                     const Buffer& d_normed) override {
    const int head = tensor_index(dims_, TensorRole::head);
    const auto d_logits = kernels_.prepare(logits(a));
    kernels_.linear_backward_weight(gradients.at(head), d_logits, stream(*a.normed));
    kernels_.linear_backward_input(stream(d_normed), d_logits, weights.at(head), Output::overwrite);
  }

  void norm_backward(int norm, const WeightTable& weights, const GradientTable& gradients, const Buffer& dy,
                     const Buffer& x, const Buffer& inverse_rms, const Buffer& dx) override {
    const Matrix d_weight = gradients.at(norm);
    kernels_.rms_norm_backward(stream(dx), {d_weight.data, d_weight.rows}, inverse_rms.floats(), stream(dy),
                               stream(x), weights.at(norm), norm_epsilon);
  }

  void mlp_backward(int layer, const WeightTable& weights, const GradientTable& gradients, const Buffer& dy,
                    const BlockActivations& a, const BlockWorkspace& work) override {
    const auto w = [&](TensorRole role) { return weights.at(tensor_index(dims_, role, layer)); };
    const auto dw = [&](TensorRole role) { return gradients.at(tensor_index(dims_, role, layer)); };
    kernels::Kernels& k = kernels_;
    {
      const auto d_out = k.prepare(stream(dy));
      k.linear_backward_weight(dw(TensorRole::w2), d_out, inner(a.gated));
      k.linear_backward_input(inner(work.d_gated), d_out, w(TensorRole::w2), Output::overwrite);
    }
    const auto [d_gate, d_up] = k.swiglu_backward(inner(work.d_gate), inner(work.d_up), inner(work.d_gated),
                                                  inner(a.gate), inner(a.up));
    const auto normed = k.prepare(stream(*a.normed2));
    k.linear_backward_weight(dw(TensorRole::w3), d_up, normed);
    k.linear_backward_weight(dw(TensorRole::w1), d_gate, normed);
    const Matrix d_normed = stream(*work.d_normed);
    k.linear_backward_input(d_normed, d_up, w(TensorRole::w3), Output::overwrite);
    k.linear_backward_input(d_normed, d_gate, w(TensorRole::w1), Output::accumulate);
  }

  void attention_backward(int layer, const WeightTable& weights, const GradientTable& gradients,
                          const Buffer& dy, const BlockActivations& a, const BlockWorkspace& work) override {
    const auto w = [&](TensorRole role) { return weights.at(tensor_index(dims_, role, layer)); };
    const auto dw = [&](TensorRole role) { return gradients.at(tensor_index(dims_, role, layer)); };
    kernels::Kernels& k = kernels_;
    {
      const auto d_out = k.prepare(stream(dy));
      k.linear_backward_weight(dw(TensorRole::wo), d_out, queries(a.attention));
      k.linear_backward_input(queries(work.d_attention), d_out, w(TensorRole::wo), Output::overwrite);
    }
    k.attention_backward(queries(work.dq), keys(work.dk), keys(work.dv), queries(work.d_attention),
                         queries(a.attention), a.log_sum_exp->floats(), queries(a.q), keys(a.k), keys(a.v),
                         attention_);
    k.rope(queries(work.dq), table(tables_.cosines), table(tables_.sines), bodies::Rotation::inverse);
    k.rope(keys(work.dk), table(tables_.cosines), table(tables_.sines), bodies::Rotation::inverse);
    const auto dq = k.prepare(queries(work.dq));
    const auto dk = k.prepare(keys(work.dk));
    const auto dv = k.prepare(keys(work.dv));
    const auto normed = k.prepare(stream(*a.normed1));
    k.linear_backward_weight(dw(TensorRole::wv), dv, normed);
    k.linear_backward_weight(dw(TensorRole::wk), dk, normed);
    k.linear_backward_weight(dw(TensorRole::wq), dq, normed);
    const Matrix d_normed = stream(*work.d_normed);
    k.linear_backward_input(d_normed, dv, w(TensorRole::wv), Output::overwrite);
    k.linear_backward_input(d_normed, dk, w(TensorRole::wk), Output::accumulate);
    k.linear_backward_input(d_normed, dq, w(TensorRole::wq), Output::accumulate);
  }

  void embedding_backward(const DeviceBatch& batch, const GradientTable& gradients,
                          const Buffer& dy) override {
    kernels_.embedding_backward(gradients.at(0), stream(dy), batch.inputs);
  }

  void copy(const Buffer& to, const Buffer& from) override {
    kernels_.scaled_copy(flat(to), flat(from), 1.0F);
  }
  void add(const Buffer& to, const Buffer& from) override { kernels_.add(stream(to), stream(from)); }
  void zero(const Buffer& buffer) override { kernels_.fill_zero(flat(buffer)); }

 private:
  /// Rows of the residual stream's width, for all tokens or for this rank's.
  [[nodiscard]] Matrix stream(const Buffer& buffer) const {
    const DeviceSpan<float> values = buffer.floats();
    return {values.data(), values.size() / dims_.hidden, dims_.hidden};
  }
  [[nodiscard]] Matrix of_tokens(const BufferRef& buffer, std::int64_t columns) const {
    return {buffer->floats().data(), tokens_, columns};
  }
  [[nodiscard]] Matrix queries(const BufferRef& buffer) const {
    return of_tokens(buffer, local_.heads * dims_.head_size());
  }
  [[nodiscard]] Matrix keys(const BufferRef& buffer) const {
    return of_tokens(buffer, local_.kv_heads * dims_.head_size());
  }
  [[nodiscard]] Matrix inner(const BufferRef& buffer) const { return of_tokens(buffer, local_.ffn); }
  [[nodiscard]] Matrix logits(const HeadActivations& a) const {
    return of_tokens(a.logits, local_.vocab.count());
  }
  [[nodiscard]] Matrix table(const BufferRef& buffer) const {
    return {buffer->floats().data(), dims_.seq, dims_.head_size() / 2};
  }
  static kernels::TypedView flat(const Buffer& buffer) {
    return {buffer.data(), buffer.dtype(), buffer.elements().count(), 1};
  }
  [[nodiscard]] float mean_scale() const { return 1.0F / static_cast<float>(tokens_); }

  ModelDims dims_;
  LocalDims local_;
  std::int64_t tokens_;
  kernels::AttentionShape attention_;
  kernels::Kernels& kernels_;
  RopeTables tables_;
};

/// Adds up what the pieces take and lets it pass when compute must be over.
class TimedMath final : public LayerMath {
 public:
  TimedMath(const ModelDims& dims, LayerSeconds seconds, std::function<void(double)> elapse)
      : head_layer_(dims.head_layer()),
        shares_(block_shares(dims)),
        seconds_(std::move(seconds)),
        elapse_(std::move(elapse)) {}

  void enter(Pass pass) override { pass_ = pass; }

  void embedding_forward(const DeviceBatch&, const WeightTable&, const Buffer&) override { charge(0, 1.0); }
  void norm_forward(int, const WeightTable&, const Buffer&, const Buffer&) override {}
  void attention_forward(int layer, const WeightTable&, const BlockActivations&) override {
    charge(layer, shares_.attention);
  }
  void attention_output(int layer, const WeightTable&, const BlockActivations&, const Buffer&,
                        Output) override {
    charge(layer, shares_.attention_output);
  }
  void mlp_forward(int layer, const WeightTable&, const BlockActivations&) override {
    charge(layer, shares_.mlp);
  }
  void mlp_output(int layer, const WeightTable&, const BlockActivations&, const Buffer&, Output) override {
    charge(layer, shares_.mlp_output);
  }
  void logits_forward(const WeightTable&, const HeadActivations&) override { charge(head_layer_, 1.0); }
  void loss(const DeviceBatch&, const HeadActivations&, DeviceSpan<double>) override {}
  void largest_logits(const HeadActivations&, const RowStatistics&) override {}
  void exponentials(const DeviceBatch&, const HeadActivations&, const RowStatistics&) override {}
  void loss(const DeviceBatch&, const HeadActivations&, const RowStatistics&, DeviceSpan<double>) override {}

  void head_backward(const WeightTable&, const GradientTable&, const HeadActivations&,
                     const Buffer&) override {
    charge(head_layer_, 1.0);
  }
  void norm_backward(int, const WeightTable&, const GradientTable&, const Buffer&, const Buffer&,
                     const Buffer&, const Buffer&) override {}
  void mlp_backward(int layer, const WeightTable&, const GradientTable&, const Buffer&,
                    const BlockActivations&, const BlockWorkspace&) override {
    charge(layer, shares_.mlp + shares_.mlp_output);
  }
  void attention_backward(int layer, const WeightTable&, const GradientTable&, const Buffer&,
                          const BlockActivations&, const BlockWorkspace&) override {
    charge(layer, shares_.attention + shares_.attention_output);
  }
  void embedding_backward(const DeviceBatch&, const GradientTable&, const Buffer&) override {
    charge(0, 1.0);
  }

  void copy(const Buffer&, const Buffer&) override {}
  void add(const Buffer&, const Buffer&) override {}
  void zero(const Buffer&) override {}

  void settle() override {
    if (due_ > 0.0) elapse_(std::exchange(due_, 0.0));
  }

 private:
  /// A piece that is that share of the layer's whole pass.
  void charge(int layer, double share) {
    if (pass_ == Pass::recompute) share /= 1.0 - shares_.mlp_output;  // which is not run again
    due_ += share * seconds_(layer, pass_);
  }

  int head_layer_;
  BlockShares shares_;
  LayerSeconds seconds_;
  std::function<void(double)> elapse_;
  Pass pass_ = Pass::forward;
  double due_ = 0.0;  ///< seconds not yet passed
};

}  // namespace

RopeTables allocate_rope_tables(const ModelDims& dims, Memory& memory, Backing backing) {
  const Elements size(dims.seq * dims.head_size() / 2);
  return {.cosines = memory.allocate(Category::workspace, DType::fp32, size, backing),
          .sines = memory.allocate(Category::workspace, DType::fp32, size, backing)};
}

std::unique_ptr<LayerMath> make_real_math(const ModelDims& dims, const LocalDims& local,
                                          std::int64_t micro_batch, RopeTables tables,
                                          kernels::Kernels& kernels) {
  return std::make_unique<RealMath>(dims, local, micro_batch, std::move(tables), kernels);
}

std::unique_ptr<LayerMath> make_timed_math(const ModelDims& dims, LayerSeconds seconds,
                                           std::function<void(double)> elapse) {
  return std::make_unique<TimedMath>(dims, std::move(seconds), std::move(elapse));
}

}  // namespace shardbench
