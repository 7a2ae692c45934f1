#include "src/train/resident_state.hpp"

#include <cmath>
#include <limits>

#include "src/errors.hpp"

namespace shardbench {

bodies::AdamW adamw_constants(const AdamWSettings& s, const TensorInfo& tensor, std::int64_t update,
                              double gradient_factor) {
  const auto t = static_cast<double>(update);
  return {.learning_rate = s.learning_rate,
          .beta1 = static_cast<float>(s.beta1),
          .beta2 = static_cast<float>(s.beta2),
          .epsilon = s.epsilon,
          .weight_decay = tensor.is_norm() ? 0.0F : s.weight_decay,
          .inverse_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(s.beta1, t))),
          .inverse_correction2 = static_cast<float>(1.0 / (1.0 - std::pow(s.beta2, t))),
          .gradient_factor = static_cast<float>(gradient_factor)};
}

ResidentState::ResidentState(TrainContext& context, std::vector<Slice> slices)
    : context_(context), slices_(std::move(slices)), size_(total(slices_)) {
  const Options& options = context.options;
  const auto allocate = [&](Category category, DType dtype) {
    return context.memory.allocate(category, dtype, size_, context.resident);
  };
  parameters_ = allocate(Category::parameters, options.param_dtype);
  gradients_ = allocate(Category::gradients, options.param_dtype);
  if (options.fp32_grad_accum == Fp32Accumulation::on)
    accumulator_ = allocate(Category::gradients, DType::fp32);
  masters_ = options.param_dtype == DType::fp32 ? parameters_ : allocate(Category::optimizer, DType::fp32);
  moment1_ = allocate(Category::optimizer, DType::fp32);
  moment2_ = allocate(Category::optimizer, DType::fp32);
  if (holds_values()) initialise();
}

void ResidentState::initialise() {
  kernels::Kernels& k = context_.kernels;
  for (const Slice& slice : slices_) {
    const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(slice.tensor)];
    const std::span<float> master = values(masters_, slice);
    for (std::int64_t i = 0; i < slice.count; ++i)
      master[static_cast<std::size_t>(i)] = initial_value(context_.options.seed, tensor, slice.begin + i);
  }
  const std::int64_t n = size_.count();
  if (masters_ != parameters_) k.scaled_copy(view(*parameters_, 0, n), view(*masters_, 0, n), 1.0F);
  for (const BufferRef& buffer : {gradients_, moment1_, moment2_}) k.fill_zero(view(*buffer, 0, n));
  if (accumulator_) k.fill_zero(view(*accumulator_, 0, n));
}

void ResidentState::accumulate_gradient(const Slice& slice, const Buffer& source, std::int64_t source_offset,
                                        Accumulate mode) {
  if (!holds_values() || !source.holds_values()) return;
  kernels::Kernels& k = context_.kernels;
  const auto from = view(source, source_offset, slice.count);
  const auto resting = view(*gradients_, slice.offset, slice.count);
  const auto sum = accumulator_ ? view(*accumulator_, slice.offset, slice.count) : resting;
  if (mode == Accumulate::replace) {
    k.scaled_copy(sum, from, 1.0F);
  } else {
    k.accumulate(sum, from);
  }
  if (accumulator_) k.scaled_copy(resting, sum, 1.0F);
}

double ResidentState::gradient_squares() {
  if (!holds_values() || context_.imitate_optimizer) return std::numeric_limits<double>::quiet_NaN();
  return context_.kernels.sum_of_squares(view(gradients(), 0, size_.count()));
}

void ResidentState::update(double gradient_factor) {
  ++updates_;
  if (context_.imitate_optimizer) {
    context_.imitate_optimizer(size_);
    return;
  }
  for (const Slice& slice : slices_) {
    const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(slice.tensor)];
    context_.kernels.adamw(values(masters_, slice), values(moment1_, slice), values(moment2_, slice),
                           view(*parameters_, slice.offset, slice.count),
                           view(gradients(), slice.offset, slice.count),
                           adamw_constants(AdamWSettings{}, tensor, updates_, gradient_factor));
  }
}

std::span<float> ResidentState::values(const BufferRef& buffer, const Slice& slice) const {
  return buffer->floats().subspan(static_cast<std::size_t>(slice.offset),
                                  static_cast<std::size_t>(slice.count));
}

std::span<const float> ResidentState::masters(const Slice& slice) const { return values(masters_, slice); }

}  // namespace shardbench
