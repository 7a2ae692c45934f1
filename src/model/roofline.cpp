#include "src/model/roofline.hpp"

#include <algorithm>
#include <utility>

#include "src/errors.hpp"

namespace shardbench {
namespace {

constexpr double fp32 = 4.0;

/// The kernels of one rank. Shapes are [tokens, width]; widths marked ' are divided by tp.
class RankKernels {
 public:
  explicit RankKernels(const RankWork& work)
      : element_(static_cast<double>(size_of(work.dtype))),
        tokens_(static_cast<double>(work.tokens)),
        stream_(static_cast<double>(work.stream_tokens * work.dims.hidden)),
        hidden_(static_cast<double>(work.dims.hidden)),
        heads_(static_cast<double>(work.local.heads)),
        q_(static_cast<double>(work.local.heads * work.dims.head_size())),
        kv_(static_cast<double>(work.local.kv_heads * work.dims.head_size())),
        ffn_(static_cast<double>(work.local.ffn)),
        vocab_(static_cast<double>(work.local.vocab.count())),
        seq_(static_cast<double>(work.dims.seq)) {}

  [[nodiscard]] std::vector<Kernel> block(Pass pass) const {
    if (pass == Pass::backward) return block_backward();
    std::vector<Kernel> kernels = {norm(),
                                   product("qkv", hidden_, q_ + 2 * kv_),
                                   rope(),
                                   attention(),
                                   product("wo", q_, hidden_),
                                   residual(),
                                   norm(),
                                   product("w1 w3", hidden_, 2 * ffn_),
                                   {.name = "swiglu", .bytes = element_ * 3 * tokens_ * ffn_}};
    if (pass == Pass::recompute) return kernels;
    kernels.insert(kernels.end(), {product("w2", ffn_, hidden_), residual()});
    return kernels;
  }

  [[nodiscard]] std::vector<Kernel> embedding(Pass pass) const {
    const double rows = tokens_ * hidden_;
    if (pass == Pass::forward) return {{.name = "look-up", .bytes = element_ * 2 * rows}};
    return {{.name = "zero gradient", .bytes = fp32 * vocab_ * hidden_},
            {.name = "scatter", .bytes = element_ * rows + fp32 * 2 * rows}};
  }

  [[nodiscard]] std::vector<Kernel> head(Pass pass) const {
    const double flops = 2 * tokens_ * hidden_ * vocab_;
    const double logits = fp32 * tokens_ * vocab_;
    const double input = element_ * tokens_ * hidden_;
    const double weight = hidden_ * vocab_;
    const Kernel product{.name = "head", .flops = flops, .bytes = input + element_ * weight + logits};
    if (pass == Pass::forward) return {norm(), product, {.name = "loss", .bytes = 2 * logits}};
    return {product,
            {.name = "head gradient", .flops = flops, .bytes = input + logits + fp32 * weight},
            norm_backward()};
  }

 private:
  [[nodiscard]] std::vector<Kernel> block_backward() const {
    return {product("w2", ffn_, hidden_),
            weight_gradient("w2", ffn_, hidden_),
            {.name = "swiglu", .bytes = element_ * 5 * tokens_ * ffn_},
            product("w1 w3", hidden_, 2 * ffn_),
            weight_gradient("w1 w3", hidden_, 2 * ffn_),
            norm_backward(),
            product("wo", q_, hidden_),
            weight_gradient("wo", q_, hidden_),
            attention_backward(),
            rope(),
            product("qkv", hidden_, q_ + 2 * kv_),
            weight_gradient("qkv", hidden_, q_ + 2 * kv_),
            norm_backward()};
  }

  /// From one side of a weight to the other: forward, or the gradient of its input.
  [[nodiscard]] Kernel product(std::string_view name, double in, double out) const {
    return {
        .name = name, .flops = 2 * tokens_ * in * out, .bytes = element_ * (tokens_ * (in + out) + in * out)};
  }
  [[nodiscard]] Kernel weight_gradient(std::string_view name, double in, double out) const {
    return {.name = name,
            .flops = 2 * tokens_ * in * out,
            .bytes = element_ * tokens_ * (in + out) + fp32 * in * out};
  }
  /// layer_flops() counts a norm's weight like any other parameter.
  [[nodiscard]] Kernel norm() const {
    return {.name = "norm", .flops = 2 * stream_, .bytes = element_ * 2 * stream_};
  }
  /// Reads the gradient and the input, adds to the stream's gradient.
  [[nodiscard]] Kernel norm_backward() const {
    return {.name = "norm", .flops = 4 * stream_, .bytes = element_ * 4 * stream_};
  }
  [[nodiscard]] Kernel residual() const { return {.name = "residual", .bytes = element_ * 3 * stream_}; }
  [[nodiscard]] Kernel rope() const { return {.name = "rope", .bytes = element_ * 2 * tokens_ * (q_ + kv_)}; }
  /// Reads q, k and v, writes the output and the log-sum-exp of the scores.
  [[nodiscard]] Kernel attention() const {
    return {.name = "attention",
            .flops = 4 * tokens_ * q_ * seq_,
            .bytes = element_ * tokens_ * (2 * q_ + 2 * kv_) + fp32 * tokens_ * heads_};
  }
  /// Reads q, k, v, output, its gradient and the log-sum-exp, writes the gradients of q, k and v.
  [[nodiscard]] Kernel attention_backward() const {
    return {.name = "attention",
            .flops = 8 * tokens_ * q_ * seq_,
            .bytes = element_ * tokens_ * (4 * q_ + 4 * kv_) + fp32 * tokens_ * heads_};
  }

  double element_;  ///< bytes
  double tokens_;
  double stream_;  ///< elements of the residual stream
  double hidden_;
  double heads_;  ///< '
  double q_;      ///< ' width of q and of the attention's output
  double kv_;     ///< '
  double ffn_;    ///< '
  double vocab_;  ///< '
  double seq_;
};

}  // namespace

std::vector<Kernel> kernels_of(const RankWork& work, LayerKind kind, Pass pass) {
  SHARDBENCH_ASSERT(kind == LayerKind::block || pass != Pass::recompute);
  const RankKernels kernels(work);
  switch (kind) {
    case LayerKind::embedding:
      return kernels.embedding(pass);
    case LayerKind::block:
      return kernels.block(pass);
    case LayerKind::head:
      return kernels.head(pass);
  }
  return {};
}

Kernel adamw_kernel(Elements elements, DType parameter, DType gradient) {
  const auto count = static_cast<double>(elements.count());
  const double state = 3 * 2 * fp32;  // master and moments, read and written
  const double copy = parameter == DType::fp32 ? 0.0 : static_cast<double>(size_of(parameter));
  return {.name = "adamw",
          .flops = adamw_flops_per_element * count,
          .bytes = (state + copy + static_cast<double>(size_of(gradient))) * count};
}

double roofline_seconds(const Kernel& kernel, const Hardware& hardware) {
  const double arithmetic = kernel.flops / (hardware.peak_flops * hardware.efficiency);
  return std::max(arithmetic, kernel.bytes / hardware.memory_bandwidth) + hardware.launch_s;
}

double roofline_seconds(std::span<const Kernel> kernels, const Hardware& hardware) {
  double seconds = 0.0;
  for (const Kernel& kernel : kernels) seconds += roofline_seconds(kernel, hardware);
  return seconds;
}

}  // namespace shardbench
