// How long compute takes on a device that is as fast as its arithmetic or its memory lets it be (Williams,
// Waterman, Patterson: Roofline, CACM 52(4), 2009), kernel by kernel:
//
//   seconds = sum over kernels of max(FLOPs / (peak * efficiency), bytes / memory bandwidth) + launch
//
// FLOPs are layer_flops(): attention counts whole. Bytes are those of each kernel's operands, read or written
// once: between kernels everything goes through memory, within one nothing does. Attention is tiled and keeps
// its scores on chip (Dao et al., FlashAttention, arXiv:2205.14135). Activations have the parameter dtype;
// logits and gradients of weights are fp32. Projections of one input (q, k and v; w1 and w3) are one product.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "src/comm/hardware.hpp"
#include "src/model/dimensions.hpp"

namespace shardbench {

struct Kernel {
  std::string_view name;
  double flops = 0.0;
  double bytes = 0.0;  ///< read and written
};

/// What one rank computes of a micro-batch.
struct RankWork {
  ModelDims dims;
  LocalDims local;
  std::int64_t tokens = 0;
  std::int64_t stream_tokens = 0;  ///< of the residual stream: fewer with sequence parallelism
  DType dtype = DType::bf16;
};

/// The kernels of a layer's pass, in order. Only blocks are recomputed.
std::vector<Kernel> kernels_of(const RankWork& work, LayerKind kind, Pass pass);

/// AdamW's additions, multiplications, division and root.
constexpr double adamw_flops_per_element = 16.0;

/// AdamW on `elements`: the gradient is read, master and both moments are read and written, and so is the
/// parameter where it is not the master.
Kernel adamw_kernel(Elements elements, DType parameter, DType gradient);

double roofline_seconds(const Kernel& kernel, const Hardware& hardware);
double roofline_seconds(std::span<const Kernel> kernels, const Hardware& hardware);

}  // namespace shardbench
