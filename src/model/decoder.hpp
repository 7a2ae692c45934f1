// The Llama-style decoder, layer by layer: activations live here, the arithmetic behind `LayerMath`.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/kernels.hpp"
#include "src/device/buffer.hpp"
#include "src/model/dimensions.hpp"
#include "src/model/initial_state.hpp"
#include "src/model/tensor_tables.hpp"

namespace shardbench {

constexpr float norm_epsilon = 1e-5F;
constexpr double rope_theta = 10000.0;

/// What a block keeps from forward for backward; T tokens. Per token and element size e:
/// e * (6h + 2*kv + 3*ffn) with the input x, plus 4 bytes per head (docs/memory.md).
struct BlockActivations {
  BufferRef normed1;      ///< [T, h]
  BufferRef q;            ///< [T, h], rotated
  BufferRef k;            ///< [T, kv], rotated
  BufferRef v;            ///< [T, kv]
  BufferRef attention;    ///< [T, h]
  BufferRef log_sum_exp;  ///< [sequences * heads * length]
  BufferRef x_middle;     ///< [T, h], after the attention residual
  BufferRef normed2;      ///< [T, h]
  BufferRef gate;         ///< [T, ffn]
  BufferRef up;           ///< [T, ffn]
  BufferRef gated;        ///< [T, ffn]
};

struct HeadActivations {
  BufferRef normed;  ///< [T, h]
  BufferRef logits;  ///< [T, vocab]; their gradient once the loss is known
  BufferRef losses;  ///< [T]
};

/// Temporaries of one block's backward.
struct BlockWorkspace {
  BufferRef d_gated, d_gate, d_up;  ///< [T, ffn]
  BufferRef d_normed, d_attention;  ///< [T, h]
  BufferRef dq;                     ///< [T, h]
  BufferRef dk, dv;                 ///< [T, kv]
  BufferRef inverse_rms;            ///< [T]
};

struct HeadWorkspace {
  BufferRef d_normed;     ///< [T, h]
  BufferRef inverse_rms;  ///< [T]
};

/// How a layer's compute is carried out: really, or imitated by a sleep of the same length.
/// `x` is a layer's input, `y` its output, `dy` the gradient of the output, which becomes that of the input.
class LayerMath {
 public:
  LayerMath() = default;
  LayerMath(const LayerMath&) = delete;
  LayerMath& operator=(const LayerMath&) = delete;
  virtual ~LayerMath() = default;

  virtual void embedding_forward(const Batch& batch, const WeightTable& weights, const Buffer& y) = 0;
  virtual void block_forward(int layer, const WeightTable& weights, const Buffer& x,
                             const BlockActivations& kept, const Buffer& y) = 0;
  /// Returns the sum of the tokens' losses; logits then hold the gradient of their mean.
  virtual double head_forward(const Batch& batch, const WeightTable& weights, const Buffer& x,
                              const HeadActivations& kept) = 0;

  virtual void head_backward(const WeightTable& weights, const GradientTable& gradients, const Buffer& x,
                             const HeadActivations& kept, const HeadWorkspace& work, const Buffer& dx) = 0;
  virtual void block_backward(int layer, const WeightTable& weights, const GradientTable& gradients,
                              const Buffer& x, const BlockActivations& kept, const BlockWorkspace& work,
                              const Buffer& dy_dx) = 0;
  virtual void embedding_backward(const Batch& batch, const GradientTable& gradients, const Buffer& dy) = 0;
};

/// One micro-batch at a time: forward(0 ... L+1), then backward(L+1 ... 0). Losses are means over the
/// micro-batch's tokens; gradients are those of that mean.
class Decoder {
 public:
  struct Settings {
    ModelDims dims;
    std::int64_t micro_batch;  ///< sequences
    std::uint64_t seed;
    Backing backing;  ///< of activations and workspace: memory, or none when compute is only timed
  };

  Decoder(const Settings& settings, Memory& memory, std::unique_ptr<LayerMath> math);

  /// Starts a micro-batch whose rows are global sequences `first_sequence` onwards of the optimizer step's
  /// batch.
  void load_batch(std::int64_t step, std::int64_t first_sequence);
  void forward(int layer, const WeightTable& weights);
  /// Adds the layer's weight gradients; frees the activations that only this layer needed.
  void backward(int layer, const WeightTable& weights, const GradientTable& gradients);

  [[nodiscard]] const ModelDims& dims() const { return settings_.dims; }
  [[nodiscard]] std::int64_t tokens() const { return settings_.micro_batch * settings_.dims.seq; }
  /// Sum of the last micro-batch's token losses; NaN when compute is only timed.
  [[nodiscard]] double loss_sum() const { return loss_sum_; }

 private:
  BufferRef allocate(Category category, std::int64_t elements);
  BlockActivations allocate_block();
  BlockWorkspace allocate_block_workspace();

  Settings settings_;
  Memory& memory_;
  std::unique_ptr<LayerMath> math_;
  Batch batch_;
  std::vector<BufferRef> input_;  ///< by layer: the residual stream that enters it
  std::vector<BlockActivations> kept_;
  HeadActivations head_;
  BufferRef d_stream_;  ///< gradient of the residual stream during backward
  double loss_sum_ = 0.0;
};

/// Cosines and sines of RoPE's angles, each [seq, head_size/2].
struct RopeTables {
  BufferRef cosines;
  BufferRef sines;
};
RopeTables allocate_rope_tables(const ModelDims& dims, Memory& memory, Backing backing);

/// The real thing: kernels on real buffers. Fills the tables.
std::unique_ptr<LayerMath> make_real_math(const ModelDims& dims, std::int64_t micro_batch, RopeTables tables,
                                          kernels::Kernels& kernels);

/// Sleeps for as long as `seconds` says a layer and direction takes.
std::unique_ptr<LayerMath> make_timed_math(const ModelDims& dims, std::function<void(int, Direction)> run);

}  // namespace shardbench
