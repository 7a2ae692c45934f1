#include "src/ledger/formulas.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardbench {
namespace {

std::string digits(Exact::Wide value) {
  if (value == 0) return "0";
  std::string text;
  for (; value > 0; value /= 10) text.push_back(static_cast<char>('0' + static_cast<int>(value % 10)));
  std::reverse(text.begin(), text.end());
  return text;
}

}  // namespace

std::string Exact::text() const {
  return is_integer() ? digits(numerator / denominator) : fmt::format("{}", value());
}

LedgerAnswer answer(const LedgerQuestion& q) {
  // Everything over the common denominator N * tp, so that nothing is rounded before the end.
  const Exact::Wide psi = static_cast<Exact::Wide>(q.sharded_parameters) +
                          static_cast<Exact::Wide>(q.tp) * q.replicated_parameters;
  const std::int64_t denominator = q.n * q.tp;
  const auto whole = [&](std::int64_t per_element) { return Exact{psi * per_element * q.n, denominator}; };
  const auto shard = [&](std::int64_t per_element) { return Exact{psi * per_element, denominator}; };
  const auto moved = [&](std::int64_t times, Exact::Wide elements) {
    return Exact{elements * times * (q.n - 1), denominator};
  };

  const std::int64_t p = size_of(q.param_dtype);
  const std::int64_t gradient = p + (q.fp32_grad_accum == Fp32Accumulation::on ? 4 : 0);
  LedgerAnswer a;
  a.parameters_bytes = q.stage >= 3 ? shard(p) : whole(p);
  a.gradients_bytes = q.stage >= 2 ? shard(gradient) : whole(gradient);
  a.optimizer_bytes = q.stage >= 1 ? shard(q.k) : whole(q.k);
  a.static_bytes = {a.parameters_bytes.numerator + a.gradients_bytes.numerator + a.optimizer_bytes.numerator,
                    denominator};

  a.all_reduce_elements = q.stage == 0 ? moved(2, psi) : Exact{0, denominator};
  const std::int64_t reductions = q.stage == 0 ? 0 : q.stage == 1 ? 1 : q.grad_accum;
  a.reduce_scatter_elements = moved(reductions, psi);
  if (q.stage == 1 || q.stage == 2) {
    a.all_gather_elements = moved(1, psi);
  } else if (q.stage == 3) {
    a.all_gather_elements =
        moved(q.reshard == ReshardAfterForward::none ? q.grad_accum : 2 * q.grad_accum, psi);
    if (q.reshard == ReshardAfterForward::blocks)
      a.all_gather_elements.numerator -= moved(q.grad_accum, q.kept_parameters).numerator;
  } else {
    a.all_gather_elements = {0, denominator};
  }
  a.volume_elements = {
      a.all_reduce_elements.numerator + a.reduce_scatter_elements.numerator + a.all_gather_elements.numerator,
      denominator};
  a.volume_bytes = {
      size_of(q.reduce_dtype) * (a.all_reduce_elements.numerator + a.reduce_scatter_elements.numerator) +
          p * a.all_gather_elements.numerator,
      denominator};
  return a;
}

}  // namespace shardbench
