#include "src/train/resident_state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/errors.hpp"

namespace shardbench {

bodies::AdamW adamw_constants(const AdamWSettings& s, const TensorInfo& tensor, std::int64_t update) {
  const auto t = static_cast<double>(update);
  return {.learning_rate = s.learning_rate,
          .beta1 = static_cast<float>(s.beta1),
          .beta2 = static_cast<float>(s.beta2),
          .epsilon = s.epsilon,
          .weight_decay = tensor.is_norm() ? 0.0F : s.weight_decay,
          .inverse_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(s.beta1, t))),
          .inverse_correction2 = static_cast<float>(1.0 / (1.0 - std::pow(s.beta2, t)))};
}

ResidentState::ResidentState(TrainContext& context, Residence residence)
    : context_(context), residence_(std::move(residence)), owned_size_(total(residence_.owned)) {
  const Options& options = context.options;
  const auto allocate = [&](Category category, DType dtype, Elements size) {
    return context.memory.allocate(category, dtype, size, context.resident);
  };
  parameters_ = allocate(Category::parameters, options.param_dtype, residence_.parameters.size);
  gradients_ = allocate(Category::gradients, options.param_dtype, residence_.gradients.size);
  if (options.fp32_grad_accum == Fp32Accumulation::on)
    accumulator_ = allocate(Category::gradients, DType::fp32, residence_.gradients.size);
  if (options.param_dtype != DType::fp32) masters_ = allocate(Category::optimizer, DType::fp32, owned_size_);
  moment1_ = allocate(Category::optimizer, DType::fp32, owned_size_);
  moment2_ = allocate(Category::optimizer, DType::fp32, owned_size_);
  if (holds_values()) initialise();
  const std::shared_ptr<Device>& device = context.memory.device();
  if (computes()) clipping_.emplace(Clipping{{device, 0.0}, {device, 0.0}, {device, 1.0F}});
}

void ResidentState::initialise() {
  kernels::Kernels& k = context_.kernels;
  for (const BufferRef& buffer : {parameters_, gradients_, moment1_, moment2_})
    k.fill_zero(view(*buffer, 0, buffer->elements().count()));
  if (accumulator_) k.fill_zero(view(*accumulator_, 0, accumulator_->elements().count()));

  Device& device = *context_.memory.device();
  for (const Slice& slice : residence_.parameters.held) {
    const std::vector<float> values = initial_values(slice);
    const auto parameters = view(*parameters_, slice.offset, slice.count);
    if (parameters.dtype == DType::fp32) {
      device.write(parameters.data, std::as_bytes(std::span(values)));
    } else {
      std::vector<bodies::BFloat16> rounded(values.size());
      std::transform(values.begin(), values.end(), rounded.begin(), bodies::narrow<bodies::BFloat16>);
      device.write(parameters.data, std::as_bytes(std::span(rounded)));
    }
  }
  if (!masters_) return;
  for (std::size_t i = 0; i < owned().size(); ++i)
    write_values<float>(device, masters(i), initial_values(owned()[i]));
}

std::vector<float> ResidentState::initial_values(const Slice& slice) const {
  const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(slice.tensor)];
  std::vector<float> values(static_cast<std::size_t>(slice.count));
  for (std::int64_t i = 0; i < slice.count; ++i)
    values[static_cast<std::size_t>(i)] = initial_value(context_.options.seed, tensor, slice.begin + i);
  return values;
}

void ResidentState::accumulate_gradient(std::int64_t at, std::int64_t count, const Buffer& source,
                                        std::int64_t source_offset, Accumulate mode) {
  const Buffer& into = gradients();
  const Elements elements(count);
  context_.copies.add_copy(into, source, elements);
  if (mode == Accumulate::add) context_.copies.add(bytes_of(into.dtype(), elements));
  if (accumulator_) context_.copies.add(bytes_of(gradients_->dtype(), elements));
  if (!holds_values() || !source.holds_values()) return;
  kernels::Kernels& k = context_.kernels;
  const auto from = view(source, source_offset, count);
  const auto resting = view(*gradients_, at, count);
  const auto sum = accumulator_ ? view(*accumulator_, at, count) : resting;
  if (mode == Accumulate::replace) {
    k.scaled_copy(sum, from, 1.0F);
  } else {
    k.accumulate(sum, from);
  }
  if (accumulator_) k.scaled_copy(resting, sum, 1.0F);
}

kernels::TypedView ResidentState::gradient(std::size_t owned) const {
  return view(gradients(), residence_.gradients.owned_at[owned], residence_.owned[owned].count);
}

void ResidentState::square_gradients() {
  if (context_.options.clip > 0.0) {  // else nobody needs the norm in the step
    context_.copies.add(bytes_of(gradients().dtype(), owned_size_));
    context_.copies.settle();
  }
  if (!computes()) return;
  clipping_->squares.set(0.0);
  for (std::size_t i = 0; i < owned().size(); ++i)
    if (context_.tensors[static_cast<std::size_t>(owned()[i].tensor)].copy == Copy::primary)
      context_.kernels.add_squares(clipping_->squares.span(), gradient(i));
}

double ResidentState::gradient_squares() const {
  return clipping_ ? clipping_->squares.get() : std::numeric_limits<double>::quiet_NaN();
}

void ResidentState::update() {
  ++updates_;
  context_.imitate_optimizer(owned_size_);
  if (!computes()) return;
  for (std::size_t i = 0; i < owned().size(); ++i) {
    const Slice& slice = owned()[i];
    const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(slice.tensor)];
    context_.kernels.adamw(masters(i), moment1_->floats().subspan(slice.offset, slice.count),
                           moment2_->floats().subspan(slice.offset, slice.count),
                           view(*parameters_, residence_.parameters.owned_at[i], slice.count), gradient(i),
                           clipping_->factor.span(), adamw_constants(AdamWSettings{}, tensor, updates_));
  }
}

DeviceSpan<float> ResidentState::masters(std::size_t owned) const {
  const Slice& slice = residence_.owned[owned];
  const std::int64_t at = masters_ ? slice.offset : residence_.parameters.owned_at[owned];
  return (masters_ ? masters_ : parameters_)->floats().subspan(at, slice.count);
}

}  // namespace shardbench
