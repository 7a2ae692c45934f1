// Bodies that compute one element: casts, gradient accumulation, SwiGLU, AdamW.
#pragma once

#include "kernels/bodies/portable.hpp"

namespace shardbench::bodies {

/// destination[i] = scale * source[i], with the cast between storage types fused in.
template <class To, class From>
SHARDBENCH_BODY void scaled_copy(std::int64_t i, To* destination, const From* source, float scale) {
  destination[i] = narrow<To>(scale * widen(source[i]));
}

/// destination[i] += source[i], rounded once to the destination's type.
template <class To, class From>
SHARDBENCH_BODY void add(std::int64_t i, To* destination, const From* source) {
  destination[i] = narrow<To>(widen(destination[i]) + widen(source[i]));
}

/// destination[i] *= source[i], rounded once to the destination's type.
template <class To, class From>
SHARDBENCH_BODY void multiply(std::int64_t i, To* destination, const From* source) {
  destination[i] = narrow<To>(widen(destination[i]) * widen(source[i]));
}

/// destination[i] = source[i] / divisor, rounded once to the destination's type. (A factor 1/divisor would
/// round twice.)
template <class To, class From>
SHARDBENCH_BODY void divided_copy(std::int64_t i, To* destination, const From* source, float divisor) {
  destination[i] = narrow<To>(widen(source[i]) / divisor);
}

/// destination[i] = min(destination[i], source[i]); a NaN on either side stays.
template <class To, class From>
SHARDBENCH_BODY void minimum(std::int64_t i, To* destination, const From* source) {
  const float a = widen(destination[i]);
  const float b = widen(source[i]);
  destination[i] = narrow<To>(a <= b || a != a ? a : b);
}

/// destination[i] = max(destination[i], source[i]); a NaN on either side stays.
template <class To, class From>
SHARDBENCH_BODY void maximum(std::int64_t i, To* destination, const From* source) {
  const float a = widen(destination[i]);
  const float b = widen(source[i]);
  destination[i] = narrow<To>(a >= b || a != a ? a : b);
}

/// gated[i] = silu(gate[i]) * up[i]
SHARDBENCH_BODY void swiglu_forward(std::int64_t i, float* gated, const float* gate, const float* up) {
  const float sigmoid = 1.0F / (1.0F + std::exp(-gate[i]));
  gated[i] = gate[i] * sigmoid * up[i];
}

/// From the gradient of silu(gate) * up: those of gate and up. silu'(x) = s(x) * (1 + x * (1 - s(x))).
template <class To>
SHARDBENCH_BODY void swiglu_backward(std::int64_t i, To* d_gate, To* d_up, const float* d_gated,
                                     const float* gate, const float* up) {
  const float sigmoid = 1.0F / (1.0F + std::exp(-gate[i]));
  const float upstream = d_gated[i];
  d_gate[i] = narrow<To>(upstream * up[i] * sigmoid * (1.0F + gate[i] * (1.0F - sigmoid)));
  d_up[i] = narrow<To>(upstream * gate[i] * sigmoid);
}

/// The optimizer's constants for one step; the bias corrections 1/(1 - beta^t) come ready-made.
struct AdamW {
  float learning_rate;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
  float inverse_correction1;
  float inverse_correction2;
};

/// Decoupled weight decay first, then the Adam update (Loshchilov & Hutter, arXiv:1711.05101).
/// `parameter` may be the master itself (fp32 parameters) or its rounded copy. `gradient_factor` clips; 1
/// without.
template <class Parameter, class Gradient>
SHARDBENCH_BODY void adamw(std::int64_t i, float* master, float* moment1, float* moment2,
                           Parameter* parameter, const Gradient* gradient, float gradient_factor,
                           const AdamW& c) {
  const float g = gradient_factor * widen(gradient[i]);
  const float m = c.beta1 * moment1[i] + (1.0F - c.beta1) * g;
  const float v = c.beta2 * moment2[i] + (1.0F - c.beta2) * g * g;
  const float decayed = master[i] - c.learning_rate * c.weight_decay * master[i];
  const float step = m * c.inverse_correction1 / (std::sqrt(v * c.inverse_correction2) + c.epsilon);
  moment1[i] = m;
  moment2[i] = v;
  master[i] = decayed - c.learning_rate * step;
  parameter[i] = narrow<Parameter>(master[i]);
}

/// min(1, bound / (sqrt(squares) + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it; 1 where squares are
/// NaN.
SHARDBENCH_BODY float clip_factor(double squares, double bound) {
  const double factor = bound / (std::sqrt(squares) + 1e-6);
  return factor < 1.0 ? static_cast<float>(factor) : 1.0F;
}

}  // namespace shardbench::bodies
