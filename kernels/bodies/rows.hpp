// Bodies that compute one row (a token) with a team of lanes, or one column where rows must be summed.
#pragma once

#include "kernels/bodies/portable.hpp"

namespace shardbench::bodies {

/// Reciprocal root mean square of a row: 1 / sqrt(mean(x^2) + epsilon).
template <class Lanes>
SHARDBENCH_BODY float reciprocal_rms(const Lanes& lanes, const float* x, std::int64_t width, float epsilon) {
  float squares = 0.0F;
  lanes.each(width, [&](std::int64_t c) { squares += x[c] * x[c]; });
  return 1.0F / std::sqrt(lanes.sum(squares) / static_cast<float>(width) + epsilon);
}

/// y = x / rms(x) * weight, one row of `width`.
template <class Lanes, class Weight>
SHARDBENCH_BODY void rms_norm_forward(const Lanes& lanes, float* y, const float* x, const Weight* weight,
                                      std::int64_t width, float epsilon) {
  const float inverse = reciprocal_rms(lanes, x, width, epsilon);
  lanes.fill(y, width, [&](std::int64_t c) { return x[c] * inverse * widen(weight[c]); });
}

/// dx += the gradient of RMSNorm with respect to its input (dx arrives holding the residual's gradient).
/// With r = 1/rms: dx = r * (w*dy - x * r^2 * mean(w*dy*x)). Also stores r for the weight's gradient.
template <class Lanes, class Weight>
SHARDBENCH_BODY void rms_norm_backward_input(const Lanes& lanes, float* dx, float* inverse_rms,
                                             const float* dy, const float* x, const Weight* weight,
                                             std::int64_t width, float epsilon) {
  const float r = reciprocal_rms(lanes, x, width, epsilon);
  float dot = 0.0F;
  lanes.each(width, [&](std::int64_t c) { dot += widen(weight[c]) * dy[c] * x[c]; });
  const float mean = lanes.sum(dot) / static_cast<float>(width);
  lanes.fill(dx, width,
             [&](std::int64_t c) { return dx[c] + r * (widen(weight[c]) * dy[c] - x[c] * r * r * mean); });
  if (lanes.index == 0) *inverse_rms = r;
}

/// What `rows` rows add to column c of the RMSNorm weight's gradient: the sum of dy * x / rms. One column a
/// call and rows in order: no races, and the same sum whoever carries it out.
SHARDBENCH_BODY float rms_norm_backward_weight(std::int64_t c, const float* dy, const float* x,
                                               const float* inverse_rms, std::int64_t rows,
                                               std::int64_t width) {
  float sum = 0.0F;
  for (std::int64_t row = 0; row < rows; ++row)
    sum += dy[row * width + c] * x[row * width + c] * inverse_rms[row];
  return sum;
}

/// One token's row of the embedding table; zeros for a negative token, which another part of the table holds.
template <class Lanes, class Weight>
SHARDBENCH_BODY void embedding_forward(const Lanes& lanes, float* y, const Weight* table, std::int64_t token,
                                       std::int64_t width) {
  lanes.fill(y, width, [&](std::int64_t c) { return token < 0 ? 0.0F : widen(table[token * width + c]); });
}

/// The gradient of the embedding that `row`'s token looked up. Tokens repeat: the first row that has one adds
/// up all of its rows, in order, and the others leave it alone. So rows can be worked on at once without
/// atomic additions, and the sums do not depend on who does what.
template <class Lanes>
SHARDBENCH_BODY void embedding_backward(const Lanes& lanes, std::int64_t row, float* d_table, const float* dy,
                                        const std::int32_t* tokens, std::int64_t rows, std::int64_t width) {
  const std::int32_t token = tokens[row];
  if (token < 0) return;
  bool is_repeated = false;
  for (std::int64_t r = lanes.index; r < row; r += lanes.count) is_repeated |= tokens[r] == token;
  if (lanes.any(is_repeated)) return;
  float* const of_token = d_table + token * width;
  for (std::int64_t first = row; first < rows; first += lanes.count) {  // each lane looks at one
    const std::int64_t own = first + lanes.index;
    if (!lanes.any(own < rows && tokens[own] == token)) continue;
    for (std::int64_t r = first; r < rows && r < first + lanes.count; ++r)
      if (tokens[r] == token)
        lanes.fill(of_token, width, [&](std::int64_t c) { return of_token[c] + dy[r * width + c]; });
  }
}

/// Cross-entropy of one row in three parts, between which tensor-parallel ranks that hold other columns
/// combine what they found. First the largest logit (-infinity without columns).
template <class Lanes>
SHARDBENCH_BODY float row_maximum(const Lanes& lanes, const float* logits, std::int64_t columns) {
  float largest = -INFINITY;
  lanes.each(columns, [&](std::int64_t c) { largest = std::fmax(largest, logits[c]); });
  return lanes.maximum(largest);
}

template <class Lanes>
SHARDBENCH_BODY float sum_of_exponentials(const Lanes& lanes, const float* logits, float largest,
                                          std::int64_t columns) {
  float total = 0.0F;
  lanes.each(columns, [&](std::int64_t c) { total += std::exp(logits[c] - largest); });
  return lanes.sum(total);
}

/// Second, sum(exp(z - largest)) and the target's logit, 0 where another rank holds it.
template <class Lanes>
SHARDBENCH_BODY void row_exponentials(const Lanes& lanes, float* total, float* target_logit,
                                      const float* logits, float largest, std::int64_t target,
                                      std::int64_t columns) {
  const float found = sum_of_exponentials(lanes, logits, largest, columns);
  if (lanes.index != 0) return;
  *total = found;
  *target_logit = target < 0 ? 0.0F : logits[target];
}

/// What all ranks together found for a row.
struct RowFound {
  float largest;
  float total;
  float target_logit;
};

/// Third, over all columns: loss = log(total) + largest - z[target], and logits are overwritten by their
/// gradient scale * (softmax(z) - onehot(target)). A negative target is in another rank's columns.
template <class Lanes>
SHARDBENCH_BODY void cross_entropy_gradient(const Lanes& lanes, float* loss, float* logits,
                                            const RowFound& row, std::int64_t target, std::int64_t columns,
                                            float scale) {
  if (lanes.index == 0) *loss = std::log(row.total) + row.largest - row.target_logit;
  const float factor = scale / row.total;
  lanes.fill(logits, columns, [&](std::int64_t c) {
    const float probability = factor * std::exp(logits[c] - row.largest);
    return c == target ? probability - scale : probability;
  });
}

/// All three where one rank holds the whole row.
template <class Lanes>
SHARDBENCH_BODY void cross_entropy(const Lanes& lanes, float* loss, float* logits, std::int64_t target,
                                   std::int64_t vocabulary, float scale) {
  // Read before the lanes meet in a maximum: after the sum one of them overwrites it.
  const float target_logit = logits[target];
  const float largest = row_maximum(lanes, logits, vocabulary);
  const float total = sum_of_exponentials(lanes, logits, largest, vocabulary);
  cross_entropy_gradient(lanes, loss, logits, {largest, total, target_logit}, target, vocabulary, scale);
}

/// Sum of values in double.
template <class Lanes>
SHARDBENCH_BODY double sum(const Lanes& lanes, const float* values, std::int64_t count) {
  double total = 0.0;
  lanes.each(count, [&](std::int64_t i) { total += static_cast<double>(values[i]); });
  return lanes.sum(total);
}

/// Sum of squares in double.
template <class Lanes, class Storage>
SHARDBENCH_BODY double sum_of_squares(const Lanes& lanes, const Storage* values, std::int64_t count) {
  double total = 0.0;
  lanes.each(count, [&](std::int64_t i) {
    const auto value = static_cast<double>(widen(values[i]));
    total += value * value;
  });
  return lanes.sum(total);
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
  lanes.each(width / 2, [&](std::int64_t pair) {
    const float cosine = cosines[pair];
    const float sine = rotation == Rotation::forward ? sines[pair] : -sines[pair];
    const float even = head[2 * pair];
    const float odd = head[2 * pair + 1];
    head[2 * pair] = even * cosine - odd * sine;
    head[2 * pair + 1] = even * sine + odd * cosine;
  });
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
  lanes.each(width, [&](std::int64_t c) {
    const float probability = c <= last ? std::exp(scale * scores[c] - log_sum_exp) : 0.0F;
    scores[c] = probability;
    d_scores[c] = scale * probability * (d_scores[c] - delta);
  });
}

}  // namespace shardbench::bodies
