// Bodies that compute one row (a token) with a team of lanes, or one column where rows must be summed.
#pragma once

#include "kernels/bodies/portable.hpp"

namespace shardbench::bodies {

/// Reciprocal root mean square of a row: 1 / sqrt(mean(x^2) + epsilon).
template <class Lanes>
SHARDBENCH_BODY float reciprocal_rms(const Lanes& lanes, const float* x, std::int64_t width, float epsilon) {
  float squares = 0.0F;
  for (std::int64_t c = lanes.index; c < width; c += lanes.count) squares += x[c] * x[c];
  return 1.0F / std::sqrt(lanes.sum(squares) / static_cast<float>(width) + epsilon);
}

/// y = x / rms(x) * weight, one row of `width`.
template <class Lanes, class Weight>
SHARDBENCH_BODY void rms_norm_forward(const Lanes& lanes, float* y, const float* x, const Weight* weight,
                                      std::int64_t width, float epsilon) {
  const float inverse = reciprocal_rms(lanes, x, width, epsilon);
  for (std::int64_t c = lanes.index; c < width; c += lanes.count) y[c] = x[c] * inverse * widen(weight[c]);
}

/// dx += the gradient of RMSNorm with respect to its input (dx arrives holding the residual's gradient).
/// With r = 1/rms: dx = r * (w*dy - x * r^2 * mean(w*dy*x)). Also stores r for the weight's gradient.
template <class Lanes, class Weight>
SHARDBENCH_BODY void rms_norm_backward_input(const Lanes& lanes, float* dx, float* inverse_rms,
                                             const float* dy, const float* x, const Weight* weight,
                                             std::int64_t width, float epsilon) {
  const float r = reciprocal_rms(lanes, x, width, epsilon);
  float dot = 0.0F;
  for (std::int64_t c = lanes.index; c < width; c += lanes.count) dot += widen(weight[c]) * dy[c] * x[c];
  const float mean = lanes.sum(dot) / static_cast<float>(width);
  for (std::int64_t c = lanes.index; c < width; c += lanes.count)
    dx[c] += r * (widen(weight[c]) * dy[c] - x[c] * r * r * mean);
  if (lanes.index == 0) *inverse_rms = r;
}

/// Column c of the RMSNorm weight's gradient: d_weight[c] += sum over rows of dy * x / rms.
/// One column a call and rows in order: no races and the same sum for any thread count.
SHARDBENCH_BODY void rms_norm_backward_weight(std::int64_t c, float* d_weight, const float* dy,
                                              const float* x, const float* inverse_rms, std::int64_t rows,
                                              std::int64_t width) {
  float sum = 0.0F;
  for (std::int64_t row = 0; row < rows; ++row)
    sum += dy[row * width + c] * x[row * width + c] * inverse_rms[row];
  d_weight[c] += sum;
}

/// One token's row of the embedding table; zeros for a negative token, which another part of the table holds.
template <class Lanes, class Weight>
SHARDBENCH_BODY void embedding_forward(const Lanes& lanes, float* y, const Weight* table, std::int64_t token,
                                       std::int64_t width) {
  for (std::int64_t c = lanes.index; c < width; c += lanes.count)
    y[c] = token < 0 ? 0.0F : widen(table[token * width + c]);
}

/// Column c of the embedding's gradient. Tokens repeat, so rows are summed in token order within one column.
SHARDBENCH_BODY void embedding_backward(std::int64_t c, float* d_table, const float* dy,
                                        const std::int32_t* tokens, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row)
    if (tokens[row] >= 0) d_table[tokens[row] * width + c] += dy[row * width + c];
}

/// Cross-entropy of one row in three parts, between which tensor-parallel ranks that hold other columns
/// combine what they found. First the largest logit (-infinity without columns).
template <class Lanes>
SHARDBENCH_BODY float row_maximum(const Lanes& lanes, const float* logits, std::int64_t columns) {
  float largest = -INFINITY;
  for (std::int64_t c = lanes.index; c < columns; c += lanes.count) largest = std::fmax(largest, logits[c]);
  return lanes.maximum(largest);
}

/// Second, sum(exp(z - largest)).
template <class Lanes>
SHARDBENCH_BODY float row_exponentials(const Lanes& lanes, const float* logits, float largest,
                                       std::int64_t columns) {
  float total = 0.0F;
  for (std::int64_t c = lanes.index; c < columns; c += lanes.count) total += std::exp(logits[c] - largest);
  return lanes.sum(total);
}

/// Third, over all columns: loss = log(total) + largest - z[target], and logits are overwritten by their
/// gradient scale * (softmax(z) - onehot(target)). A negative target is in another rank's columns.
template <class Lanes>
SHARDBENCH_BODY void cross_entropy_gradient(const Lanes& lanes, float* loss, float* logits, float largest,
                                            float total, float target_logit, std::int64_t target,
                                            std::int64_t columns, float scale) {
  if (lanes.index == 0) *loss = std::log(total) + largest - target_logit;
  const float factor = scale / total;
  for (std::int64_t c = lanes.index; c < columns; c += lanes.count) {
    const float probability = factor * std::exp(logits[c] - largest);
    logits[c] = c == target ? probability - scale : probability;
  }
}

/// All three where one rank holds the whole row.
template <class Lanes>
SHARDBENCH_BODY void cross_entropy(const Lanes& lanes, float* loss, float* logits, std::int64_t target,
                                   std::int64_t vocabulary, float scale) {
  const float largest = row_maximum(lanes, logits, vocabulary);
  const float total = row_exponentials(lanes, logits, largest, vocabulary);
  cross_entropy_gradient(lanes, loss, logits, largest, total, logits[target], target, vocabulary, scale);
}

enum class Rotation { forward, inverse };

/// Cosine and sine of position * theta^(-2*pair/width) for one entry of the table that `rope` reads.
SHARDBENCH_BODY void rope_table_entry(float* cosine, float* sine, std::int64_t position, std::int64_t pair,
                                      std::int64_t width, double theta) {
  const double frequency = std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
  const double angle = static_cast<double>(position) * frequency;
  *cosine = static_cast<float>(std::cos(angle));
  *sine = static_cast<float>(std::sin(angle));
}

/// Rotary position embedding of one head's vector at one position: pairs (2i, 2i+1) turn by the table's angle
/// (Su et al., arXiv:2104.09864). The inverse rotation is its gradient.
template <class Lanes>
SHARDBENCH_BODY void rope(const Lanes& lanes, float* head, const float* cosines, const float* sines,
                          std::int64_t width, Rotation rotation) {
  for (std::int64_t pair = lanes.index; pair < width / 2; pair += lanes.count) {
    const float cosine = cosines[pair];
    const float sine = rotation == Rotation::forward ? sines[pair] : -sines[pair];
    const float even = head[2 * pair];
    const float odd = head[2 * pair + 1];
    head[2 * pair] = even * cosine - odd * sine;
    head[2 * pair + 1] = even * sine + odd * cosine;
  }
}

/// Softmax of one row of causal attention scores: columns past `last` become 0. Stores log-sum-exp of the
/// scaled scores, from which backward recomputes the probabilities.
template <class Lanes>
SHARDBENCH_BODY void causal_softmax(const Lanes& lanes, float* scores, float* log_sum_exp, std::int64_t last,
                                    std::int64_t width, float scale) {
  float largest = -INFINITY;
  for (std::int64_t c = lanes.index; c <= last; c += lanes.count)
    largest = std::fmax(largest, scale * scores[c]);
  largest = lanes.maximum(largest);
  float total = 0.0F;
  for (std::int64_t c = lanes.index; c <= last; c += lanes.count) {
    scores[c] = std::exp(scale * scores[c] - largest);
    total += scores[c];
  }
  total = lanes.sum(total);
  const float inverse = 1.0F / total;
  for (std::int64_t c = lanes.index; c < width; c += lanes.count)
    scores[c] = c <= last ? scores[c] * inverse : 0.0F;
  if (lanes.index == 0) *log_sum_exp = largest + std::log(total);
}

/// One row of attention backward: from raw scores and dP to P and dS, in place.
/// P = exp(scale*score - lse), dS = scale * P * (dP - delta), delta = sum(dO * O) of the row.
template <class Lanes>
SHARDBENCH_BODY void causal_softmax_backward(const Lanes& lanes, float* scores, float* d_scores,
                                             float log_sum_exp, float delta, std::int64_t last,
                                             std::int64_t width, float scale) {
  for (std::int64_t c = lanes.index; c < width; c += lanes.count) {
    const float probability = c <= last ? std::exp(scale * scores[c] - log_sum_exp) : 0.0F;
    scores[c] = probability;
    d_scores[c] = scale * probability * (d_scores[c] - delta);
  }
}

}  // namespace shardbench::bodies
