// The Llama-style decoder, layer by layer: activations live here, the arithmetic behind `LayerMath`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/kernels.hpp"
#include "src/device/buffer.hpp"
#include "src/model/dimensions.hpp"
#include "src/model/initial_state.hpp"
#include "src/model/tensor_parallel.hpp"
#include "src/model/tensor_tables.hpp"

namespace shardbench {

constexpr float norm_epsilon = 1e-5F;
constexpr double rope_theta = 10000.0;

/// What backward finds of a block's forward: all of it, or only its input, from which it runs forward again.
enum class Recompute { none, full };

/// What a block's forward leaves for its backward; T tokens, of which the residual stream holds Ts: T, or
/// with sequence parallelism T/tp. Widths marked ' are divided by tp. Bytes per token: docs/memory.md.
struct BlockActivations {
  BufferRef normed1;      ///< [T, h]
  BufferRef q;            ///< [T, h'], rotated
  BufferRef k;            ///< [T, kv'], rotated
  BufferRef v;            ///< [T, kv']
  BufferRef attention;    ///< [T, h']
  BufferRef log_sum_exp;  ///< [sequences * heads' * length]
  BufferRef x_middle;     ///< [Ts, h], after the attention residual
  BufferRef normed2;      ///< [T, h]
  BufferRef gate;         ///< [T, ffn']
  BufferRef up;           ///< [T, ffn']
  BufferRef gated;        ///< [T, ffn']
};

struct HeadActivations {
  BufferRef normed;  ///< [T, h]
  BufferRef logits;  ///< [T, vocab']; their gradient once the loss is known
  BufferRef losses;  ///< [T]
};

/// What tensor-parallel ranks combine of each row of logits; [T] each.
struct RowStatistics {
  BufferRef largest, total, target_logit;
};

/// Temporaries of one block's backward.
struct BlockWorkspace {
  BufferRef d_gated, d_gate, d_up;  ///< [T, ffn']
  BufferRef d_normed;               ///< [T, h]
  BufferRef d_attention, dq;        ///< [T, h']
  BufferRef dk, dv;                 ///< [T, kv']
  BufferRef inverse_rms;            ///< [Ts]
};

/// A micro-batch's tokens where the kernels find them.
struct DeviceBatch {
  DeviceSpan<const std::int32_t> inputs, targets;
};

/// The compute of layers, piece by piece between exchanges with other ranks: carried out, or imitated by a
/// sleep of the same length. `x` is an input, `y` an output, `dy` and `dx` their gradients.
class LayerMath {
 public:
  LayerMath() = default;
  LayerMath(const LayerMath&) = delete;
  LayerMath& operator=(const LayerMath&) = delete;
  virtual ~LayerMath() = default;

  /// What follows is part of this pass.
  virtual void enter(Pass /*pass*/) {}

  virtual void embedding_forward(const DeviceBatch& batch, const WeightTable& weights, const Buffer& y) = 0;
  /// `norm` is a tensor's index.
  virtual void norm_forward(int norm, const WeightTable& weights, const Buffer& x, const Buffer& y) = 0;
  /// From kept.normed1 to kept.attention.
  virtual void attention_forward(int layer, const WeightTable& weights, const BlockActivations& kept) = 0;
  virtual void attention_output(int layer, const WeightTable& weights, const BlockActivations& kept,
                                const Buffer& y, kernels::Output output) = 0;
  /// From kept.normed2 to kept.gated.
  virtual void mlp_forward(int layer, const WeightTable& weights, const BlockActivations& kept) = 0;
  virtual void mlp_output(int layer, const WeightTable& weights, const BlockActivations& kept,
                          const Buffer& y, kernels::Output output) = 0;
  virtual void logits_forward(const WeightTable& weights, const HeadActivations& kept) = 0;
  /// Adds the sum of the tokens' losses to `sum`; logits then hold the gradient of their mean. The vocabulary
  /// is whole ...
  virtual void loss(const DeviceBatch& batch, const HeadActivations& kept, DeviceSpan<double> sum) = 0;
  /// ... or shared, and rows are combined between these three.
  virtual void largest_logits(const HeadActivations& kept, const RowStatistics& rows) = 0;
  virtual void exponentials(const DeviceBatch& batch, const HeadActivations& kept,
                            const RowStatistics& rows) = 0;
  virtual void loss(const DeviceBatch& batch, const HeadActivations& kept, const RowStatistics& rows,
                    DeviceSpan<double> sum) = 0;

  virtual void head_backward(const WeightTable& weights, const GradientTable& gradients,
                             const HeadActivations& kept, const Buffer& d_normed) = 0;
  /// Adds to dx.
  virtual void norm_backward(int norm, const WeightTable& weights, const GradientTable& gradients,
                             const Buffer& dy, const Buffer& x, const Buffer& inverse_rms,
                             const Buffer& dx) = 0;
  /// From the gradient of a half's output to work.d_normed.
  virtual void mlp_backward(int layer, const WeightTable& weights, const GradientTable& gradients,
                            const Buffer& dy, const BlockActivations& kept, const BlockWorkspace& work) = 0;
  virtual void attention_backward(int layer, const WeightTable& weights, const GradientTable& gradients,
                                  const Buffer& dy, const BlockActivations& kept,
                                  const BlockWorkspace& work) = 0;
  virtual void embedding_backward(const DeviceBatch& batch, const GradientTable& gradients,
                                  const Buffer& dy) = 0;

  virtual void copy(const Buffer& to, const Buffer& from) = 0;
  virtual void add(const Buffer& to, const Buffer& from) = 0;
  virtual void zero(const Buffer& buffer) = 0;

  /// The compute asked for so far is over: called before an exchange, and when a layer is done.
  virtual void settle() {}
};

/// One micro-batch at a time: forward(0 ... L+1), then backward(L+1 ... 0). Losses are means over the
/// micro-batch's tokens; gradients are those of that mean.
///
/// With a tensor-parallel group, per micro-batch and without sequence parallelism (Megatron-LM's f and g):
/// all-reduces of the stream after embedding, wo and w2 in forward, and of the gradients before norm1, norm2
/// and the head in backward (2L+1 each). With it reduce-scatters in their place, and an all-gather before
/// each.
class Decoder {
 public:
  struct Settings {
    ModelDims dims;
    std::int64_t micro_batch;  ///< sequences
    std::uint64_t seed;
    Backing backing;  ///< of activations and workspace: memory, or none when compute is only timed
    Recompute recompute = Recompute::none;
    TensorParallelGroup* group = nullptr;  ///< null where this rank holds whole tensors
    SequenceParallel sequence_parallel = SequenceParallel::off;
    /// Called as each pass of a layer begins; may be empty. A simulator's clock stands still in real
    /// arithmetic: here its time passes.
    std::function<void(int layer, Pass pass)> on_pass = {};
  };

  Decoder(const Settings& settings, Memory& memory, std::unique_ptr<LayerMath> math);

  /// Losses are summed from here on.
  void begin_step();
  /// Starts a micro-batch whose rows are global sequences `first_sequence` onwards of the optimizer step's
  /// batch.
  void load_batch(std::int64_t step, std::int64_t first_sequence);
  void forward(int layer, const WeightTable& weights);
  /// Adds the layer's weight gradients; frees the activations that only this layer needed.
  void backward(int layer, const WeightTable& weights, const GradientTable& gradients);

  [[nodiscard]] const ModelDims& dims() const { return settings_.dims; }
  [[nodiscard]] std::int64_t tokens() const { return settings_.micro_batch * settings_.dims.seq; }
  /// Sum of the step's token losses, micro-batch after micro-batch; waits for the device. NaN when compute is
  /// only timed.
  [[nodiscard]] double loss_sum() const;

 private:
  void enter(int layer, Pass pass);

  using Product = std::function<void(const Buffer& y, kernels::Output output)>;

  void forward_embedding(const WeightTable& weights);
  /// `y` may be null where only what backward needs is wanted.
  void forward_block(int layer, const WeightTable& weights, const BlockActivations& kept, const BufferRef& y);
  void forward_head(const WeightTable& weights);
  void backward_head(const WeightTable& weights, const GradientTable& gradients);
  void backward_block(int layer, const WeightTable& weights, const GradientTable& gradients);

  void enter_region(int layer, int norm, const WeightTable& weights, const BufferRef& x,
                    const BufferRef& normed);
  void leave_region(int layer, const BufferRef& residual, const BufferRef& y, const Product& product);
  BufferRef gradient_for_region(int layer);
  BufferRef gradient_from_region(int layer, const BufferRef& d_normed);

  void all_reduce(const BufferRef& values, int layer);
  void all_gather(const BufferRef& values, int layer);
  void reduce_scatter(const BufferRef& values, int layer);
  void all_reduce_exactly(const BufferRef& values, Reduction reduction, int layer);

  [[nodiscard]] int tp() const { return settings_.group == nullptr ? 1 : settings_.group->size(); }
  [[nodiscard]] bool cuts_sequence() const {
    return tp() > 1 && settings_.sequence_parallel == SequenceParallel::on;
  }
  [[nodiscard]] std::int64_t stream_tokens() const { return cuts_sequence() ? tokens() / tp() : tokens(); }
  /// The own tokens of a [T, h] buffer.
  BufferRef own_tokens(const BufferRef& whole);
  BufferRef allocate(Category category, std::int64_t elements);
  BufferRef allocate_stream(Category category) {
    return allocate(category, stream_tokens() * settings_.dims.hidden);
  }
  BufferRef allocate_whole(Category category) { return allocate(category, tokens() * settings_.dims.hidden); }
  [[nodiscard]] DeviceSpan<double> step_loss() const {
    return loss_sum_ ? loss_sum_->span() : DeviceSpan<double>{};
  }
  BlockActivations allocate_block();
  BlockWorkspace allocate_block_workspace();

  Settings settings_;
  LocalDims local_;
  Memory& memory_;
  std::unique_ptr<LayerMath> math_;
  /// Tokens counted from the first of this rank's vocabulary, -1 where they are another's.
  Batch batch_;
  std::shared_ptr<std::byte> tokens_;  ///< the batch on the device; none when compute is only timed
  DeviceBatch device_batch_;
  std::vector<BufferRef> input_;  ///< by layer: the residual stream that enters it
  std::vector<BlockActivations> kept_;
  HeadActivations head_;
  BufferRef d_stream_;                            ///< gradient of the residual stream during backward
  std::optional<DeviceScalar<double>> loss_sum_;  ///< none when compute is only timed
};

/// Cosines and sines of RoPE's angles, each [seq, head_size/2].
struct RopeTables {
  BufferRef cosines;
  BufferRef sines;
};
RopeTables allocate_rope_tables(const ModelDims& dims, Memory& memory, Backing backing);

/// The real thing: kernels on real buffers. Fills the tables.
std::unique_ptr<LayerMath> make_real_math(const ModelDims& dims, const LocalDims& local,
                                          std::int64_t micro_batch, RopeTables tables,
                                          kernels::Kernels& kernels);

/// Seconds that a layer's whole pass takes. Only blocks are recomputed.
using LayerSeconds = std::function<double(int layer, Pass pass)>;

/// Asks `elapse` to let as much time pass as `seconds` says, each piece of a layer its share of the
/// floating-point operations.
std::unique_ptr<LayerMath> make_timed_math(const ModelDims& dims, LayerSeconds seconds,
                                           std::function<void(double)> elapse);

}  // namespace shardbench
