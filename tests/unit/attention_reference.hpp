// Attention in double, to compare kernels with.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tests/unit/support.hpp"

namespace shardbench::test {

struct AttentionResult {
  Doubles out, log_sum_exp, dq, dk, dv;
};

/// Causal grouped-query attention, token by token and in double. `d_out` may be empty: forward only.
class AttentionReference {
 public:
  AttentionReference(const kernels::AttentionShape& shape, Doubles q, Doubles k, Doubles v)
      : s_(shape), q_(std::move(q)), k_(std::move(k)), v_(std::move(v)) {}

  [[nodiscard]] AttentionResult run(const Doubles& d_out) const {
    AttentionResult r{Doubles(q_.size()),
                      Doubles(static_cast<std::size_t>(s_.sequences * s_.heads * s_.length)),
                      Doubles(q_.size()), Doubles(k_.size()), Doubles(k_.size())};
    for (std::int64_t sequence = 0; sequence < s_.sequences; ++sequence)
      for (std::int64_t head = 0; head < s_.heads; ++head)
        for (std::int64_t i = 0; i < s_.length; ++i) query(r, d_out, sequence, head, i);
    return r;
  }

 private:
  [[nodiscard]] std::size_t q_at(std::int64_t sequence, std::int64_t token, std::int64_t head) const {
    return static_cast<std::size_t>(((sequence * s_.length + token) * s_.heads + head) * s_.head_size);
  }
  [[nodiscard]] std::size_t kv_at(std::int64_t sequence, std::int64_t token, std::int64_t head) const {
    const std::int64_t kv_head = head / (s_.heads / s_.kv_heads);
    return static_cast<std::size_t>(((sequence * s_.length + token) * s_.kv_heads + kv_head) * s_.head_size);
  }
  [[nodiscard]] double product(const Doubles& a, std::size_t i, const Doubles& b, std::size_t j) const {
    double sum = 0.0;
    for (std::size_t c = 0; c < static_cast<std::size_t>(s_.head_size); ++c) sum += a[i + c] * b[j + c];
    return sum;
  }
  void add(Doubles& to, std::size_t i, double factor, const Doubles& from, std::size_t j) const {
    for (std::size_t c = 0; c < static_cast<std::size_t>(s_.head_size); ++c)
      to[i + c] += factor * from[j + c];
  }

  void query(AttentionResult& r, const Doubles& d_out, std::int64_t sequence, std::int64_t head,
             std::int64_t i) const {
    const std::size_t own = q_at(sequence, i, head);
    const double scale = 1.0 / std::sqrt(static_cast<double>(s_.head_size));
    Doubles p;
    double total = 0.0;
    for (std::int64_t j = 0; j <= i; ++j) {
      p.push_back(std::exp(scale * product(q_, own, k_, kv_at(sequence, j, head))));
      total += p.back();
    }
    r.log_sum_exp[static_cast<std::size_t>((sequence * s_.heads + head) * s_.length + i)] = std::log(total);
    for (std::int64_t j = 0; j <= i; ++j)
      add(r.out, own, p[static_cast<std::size_t>(j)] / total, v_, kv_at(sequence, j, head));
    if (d_out.empty()) return;
    const double mean = product(d_out, own, r.out, own);  // of dP under P
    for (std::int64_t j = 0; j <= i; ++j) {
      const std::size_t key = kv_at(sequence, j, head);
      const double probability = p[static_cast<std::size_t>(j)] / total;
      const double d_score = scale * probability * (product(d_out, own, v_, key) - mean);
      add(r.dv, key, probability, d_out, own);
      add(r.dq, own, d_score, k_, key);
      add(r.dk, key, d_score, q_, own);
    }
  }

  kernels::AttentionShape s_;
  Doubles q_, k_, v_;
};

}  // namespace shardbench::test
