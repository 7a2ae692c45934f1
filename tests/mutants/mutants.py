"""Seeded faults: small patches of the sources, each of which a run's comparisons must catch.

The sources are copied and built once without a fault, at low optimisation, and each configuration is run once to show that
it passes. Then one fault after the other is written into the copy, built incrementally, run, and taken back.

A fault is caught by `-c` (exit code 3 and a line that names tensor, rank and index) or, where `-c` agrees because its
reference shares the model's arithmetic, by the golden comparison of tests/scenarios/golden.py. A ledger mismatch, a
crash or a hang alone does not count.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import golden
import runs

BUILD = runs.ROOT / "build/mutants"
COPIED = ("CMakeLists.txt", "cmake", "kernels", "src")
TARGETS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")
CMAKE = ("-G", "Ninja", "-DSHARDBENCH_TESTS=OFF", "-DCMAKE_BUILD_TYPE=", "-DCMAKE_CXX_FLAGS=-O1")

# Tiny models run for a second; a fault that makes ranks wait for each other is ended here.
RUN_TIMEOUT_S = 60.0

# What `-c` says.
NAMED = re.compile(r"check failed: .*worst element: tensor (?P<tensor>\S+), rank (?P<rank>\d+), index (?P<index>\d+): ")


@dataclass(frozen=True)
class Configuration:
    """One run. With a golden file, its model, data, dtype, clipping and steps; else `options` say all."""

    scenario: str
    ranks: int
    golden: str | None
    options: str = ""

    def __str__(self) -> str:
        return f"{self.scenario} N={self.ranks} {self.golden or ''} {self.options}".replace("  ", " ").strip()


@dataclass(frozen=True)
class Mutant:
    name: str
    broken: str
    file: str
    edits: tuple[tuple[str, str], ...]
    configuration: Configuration
    # Of a header: the only sources that use what is edited, so that the many others that include it need no recompiling.
    users: tuple[str, ...] = ()
    # A tensor that `-c` must name as the worst, where the fault is in certain ones only.
    tensor: str = ""


@dataclass(frozen=True)
class Outcome:
    caught_by: str  # "-c", "golden" or "" (survived)
    message: str


@dataclass
class Faults:
    """The list, grouped by file as it is written down."""

    mutants: list[Mutant] = field(default_factory=list)
    file: str = ""
    users: tuple[str, ...] = ()

    def in_file(self, file: str, *users: str) -> None:
        self.file, self.users = file, users

    def add(self, name: str, broken: str, configuration: Configuration, *edits: tuple[str, str], tensor: str = "") -> None:
        self.mutants.append(Mutant(name, broken, self.file, edits, configuration, self.users, tensor))


def faults() -> list[Mutant]:
    f = Faults()
    run = Configuration
    tiny = "tiny_fp32_gb4"

    # Two buckets, of which the head fills the first; no dimension that ranks divide.
    odd = ("--layers 2 --hidden 58 --heads 1 --kv-heads 1 --ffn 101 --vocab 5003 --seq 5 --untied --param-dtype fp32 "
           "--bucket-mb 1 -w 0 -n 3")
    # 1372 elements, of which every one shows.
    small = "--layers 1 --hidden 14 --heads 1 --kv-heads 1 --ffn 5 --vocab 12 --seq 5 --untied --param-dtype fp32 -w 0 -n 3"
    ddp2, ddp1 = run("ddp", 2, tiny), run("ddp", 1, tiny)
    zero1, zero2, zero3 = run("zero1", 2, tiny), run("zero2", 2, tiny), run("zero3", 2, tiny)
    tp2 = run("mesh2d", 2, tiny, "--tp 2")
    tp2_sequence = run("mesh2d", 2, tiny, "--tp 2 --sequence-parallel")

    # --- The schemes ---------------------------------------------------------------------------------------------------
    f.in_file("src/scenarios/ddp.cpp")
    scale = "1.0 / static_cast<double>(context.options.grad_accum * dp_.size())"
    f.add("ddp.no_1_over_N", "gradients are summed over ranks, not averaged", ddp2,
          (scale, "1.0 / static_cast<double>(context.options.grad_accum)"))
    f.add("ddp.no_1_over_A", "gradients are summed over micro-batches, not averaged", ddp2,
          (scale, "1.0 / static_cast<double>(dp_.size())"))
    f.add("ddp.stale_accumulation", "a step's gradients are added to the last step's", ddp2,
          ("    accumulated_.begin_step();\n", "    if (step == 0) accumulated_.begin_step();\n"))

    f.in_file("src/scenarios/zero1.cpp")
    at_end = "      parameters_.gather();\n      parameters_.wait_all();\n"
    f.add("zero1.no_gather", "updated parameters are not gathered", zero1, (at_end, ""))
    f.add("zero1.no_1_over_N", "gradients are summed over ranks, not averaged", zero1,
          ("1.0 / static_cast<double>(context.options.grad_accum * dp_.reduce.size())",
           "1.0 / static_cast<double>(context.options.grad_accum)"))
    f.add("zero1.gradient_holding", "the optimizer reads the gradients of rank 0's part", zero1,
          (".gradients = hold_whole(layouts_, dp_.reduce.rank(), Padding::none)",
           ".gradients = hold_whole(layouts_, 0, Padding::none)"))

    f.in_file("src/scenarios/zero2.cpp")
    overlap = run("zero2", 2, tiny, "--param-gather overlap --progress none")
    f.add("zero2.late_wait_for_gather", "the overlapped parameter gather is waited for before the head only", overlap,
          ("if (gathers) parameters_.wait(layer);",
           "if (gathers && layer == context_.dims().head_layer()) parameters_.wait_all();"))
    mode = "micro == 0 ? ResidentState::Accumulate::replace : ResidentState::Accumulate::add"
    f.add("zero2.last_micro_batch_only", "each micro-batch replaces the gradients of the one before", zero2,
          (mode, "ResidentState::Accumulate::replace"))

    f.in_file("src/scenarios/zero3.hpp", "src/scenarios/zero3.cpp", "src/scenarios/mesh2d.cpp")
    scale = "1.0 / static_cast<double>(context.options.grad_accum * dp_.reduce.size())"
    f.add("zero3.no_1_over_N", "gradients are summed over ranks, not averaged", zero3,
          (scale, "1.0 / static_cast<double>(context.options.grad_accum)"))
    f.add("zero3.no_1_over_A", "gradients are summed over micro-batches, not averaged", zero3,
          (scale, "1.0 / static_cast<double>(dp_.reduce.size())"))
    f.add("zero3.accumulates_for_ever", "the first micro-batch is added to the last step's gradients", zero3,
          (mode, "ResidentState::Accumulate::add"))
    f.add("zero3.last_micro_batch_only", "each micro-batch replaces the gradients of the one before", zero3,
          (mode, "ResidentState::Accumulate::replace"))

    f.in_file("src/scenarios/mesh2d.cpp")
    f.add("mesh2d.no_norm_sum", "with sequence parallelism norm gradients are not summed over tp", tp2_sequence,
          ("    if (!tp_) return;\n    std::vector<Sum> sums;", "    if (tp_) return;\n    std::vector<Sum> sums;"),
          tensor="norm")
    f.add("mesh2d.norm_sum_kept_apart", "the sum of norm gradients is added to the part already there", tp2_sequence,
          ("ResidentState::Accumulate::replace);", "ResidentState::Accumulate::add);"), tensor="norm")

    # --- Parts of the schemes ------------------------------------------------------------------------------------------
    f.in_file("src/train/gradient_buckets.cpp")
    store = "  reduction.collective.wait();\n"
    f.add("buckets.dropped", "what a reduced bucket holds is never stored", run("ddp", 3, None, odd),
          (store, store + "  if (reduction.bucket == 1) return;\n"))
    f.add("buckets.dropped_shard", "what a reduce-scattered bucket holds is never stored", run("zero2", 3, None, odd),
          (store, store + "  if (reduction.bucket == 1) return;\n"))
    begin = "  InFlight collective = dp_.start(collective_, buffer, {.bucket = bucket});\n"
    f.add("buckets.reduced_twice", "a bucket is reduced twice", run("ddp", 3, None, odd),
          (begin, "  if (bucket == 1) dp_.start(collective_, buffer, {.bucket = bucket}).wait();\n" + begin))
    f.add("buckets.wrong_block", "the result is read from the next rank's block", zero1,
          ("const std::int64_t own_block = part() *", "const std::int64_t own_block = ((part() + 1) % layouts_[b].parts()) *"))
    f.add("buckets.neighbour", "a tensor's gradient lands one element early in its bucket", run("ddp", 2, tiny),
          ("offset_in_bucket_[static_cast<std::size_t>(slice.tensor)] = slice.offset;",
           "offset_in_bucket_[static_cast<std::size_t>(slice.tensor)] = slice.offset - (slice.tensor == 5 ? 1 : 0);"))

    f.in_file("src/train/bucketed_parameters.cpp")
    f.add("bucketed.gather_of_wrong_range", "a bucket's parameters are gathered one block late",
          run("zero1", 3, None, odd),
          ("    end -= size.count();\n", "    end -= size.count() - (b == 0 ? layouts_[b].block().count() : 0);\n"))

    f.in_file("src/train/gathered_parameters.cpp")
    own = "    const std::int64_t own_block = dp_.rank() * layout.block().count();\n"
    f.add("gathered.wrong_block", "the own shard is put into the next rank's block", zero3,
          (own, "    const std::int64_t own_block = ((dp_.rank() + 1) % dp_.size()) * layout.block().count();\n"))
    f.add("gathered.stale", "a block's parameters stay from the first gather on", zero3,
          ("  SHARDBENCH_ASSERT(!states_[g].gather.active());\n",
           "  SHARDBENCH_ASSERT(!states_[g].gather.active());\n  if (group == 1) return;\n"))
    f.add("gathered.mixed_tensors", "copying out swaps wk and wv", zero3,
          ("unsharded, whole[tensor].offset + slice.begin",
           "unsharded, whole[tensor == 2 || tensor == 3 ? 5 - tensor : tensor].offset + slice.begin"))
    f.add("gathered.copy_in_offset", "shards are copied from the group before", zero3,
          ("    shard_offset_.push_back(offset);\n    offset += total(layout.slices(dp_.rank())).count();\n",
           "    offset += total(layout.slices(dp_.rank())).count();\n    shard_offset_.push_back(offset / 2);\n"))

    f.in_file("src/train/gradient_reducer.cpp")
    f.add("reducer.wrong_block", "the result is read from the next rank's block", zero3,
          ("const std::int64_t own_block = dp_.rank() *", "const std::int64_t own_block = ((dp_.rank() + 1) % layout.parts()) *"))
    f.add("reducer.dropped", "what one group's reduce-scatter returns is never stored", zero3,
          ("  reduction.collective.wait();\n", "  reduction.collective.wait();\n  if (reduction.group == 1) return;\n"),
          tensor=r"0\.")
    f.add("reducer.mixed_tensors", "copying in swaps w1 and w3", zero3,
          ("                  whole[tensor].offset + slice.begin, slice.count, scale_);",
           "                  whole[tensor == 6 || tensor == 7 ? 13 - tensor : tensor].offset + slice.begin, slice.count, scale_);"),
          tensor="w[13]")
    zeroed = ("  if (unsharded_[g]->holds_values())\n"
              "    context_.kernels.fill_zero(view(*unsharded_[g], 0, layout.real().count()));\n")
    f.add("reducer.not_zeroed", "a group's gradient buffer starts with what it held before", zero3,
          (zeroed, ""))
    f.add("reducer.tied_head_lost", "opening the root group for the embedding erases the head's part",
          run("zero3", 2, "uneven_fp32_gb6"),
          ("  if (unsharded_[g] != nullptr) return;\n", "  if (unsharded_[g] != nullptr && group != 0) return;\n"),
          tensor="embedding|norm")

    f.in_file("src/train/layer_gradients.cpp")
    zeroed = "    if (buffers_[t]->holds_values()) context_.kernels.fill_zero(values);\n"
    f.add("layer.not_zeroed", "a tensor's gradient buffer starts with what it held before", ddp2, (zeroed, ""))
    f.add("layer.tied_head_lost", "opening the embedding erases the head's part", run("zero2", 3, "uneven_fp32_gb6"),
          ("    if (buffers_[t] != nullptr) continue;\n", "    if (buffers_[t] != nullptr && layer != 0) continue;\n"),
          tensor="embedding")
    f.add("layer.last_micro_batch_only", "each micro-batch replaces the gradients of the one before", ddp2,
          ("    mode_[t] = ResidentState::Accumulate::add;\n", ""))

    f.in_file("src/train/context.hpp", *(f"src/scenarios/{name}.cpp" for name in TARGETS))
    f.add("data.same_on_all_ranks", "every rank trains rank 0's sequences", zero3,
          ("(context.mesh.dp_index * options.grad_accum + micro)", "(0 * options.grad_accum + micro)"))
    f.add("data.overlapping", "ranks' sequences overlap where there are several micro-batches", zero3,
          ("(context.mesh.dp_index * options.grad_accum + micro)", "(context.mesh.dp_index + micro)"))

    f.in_file("src/train/optimizer_step.cpp")
    clip = "tiny_fp32_gb4_clip1"
    f.add("clip.own_norm", "each rank clips by the norm of its own shard", run("zero3", 2, clip),
          ("(world ? c.of_all : c.squares).span()", "(world ? c.squares : c.squares).span()"))

    f.in_file("src/train/resident_state.cpp")
    f.add("clip.replicas", "replicated norm weights count tp times in the norm", run("mesh2d", 2, clip, "--tp 2"),
          (".copy == Copy::primary", ".copy != static_cast<Copy>(-1)"))
    decay = "tensor.is_norm() ? 0.0F : s.weight_decay"
    f.add("adamw.no_decay", "no weight decay", ddp1, (decay, "0.0F * s.weight_decay"))
    f.add("adamw.decay_on_norms", "norm weights decay too", ddp1, (decay, "s.weight_decay"))
    f.add("adamw.no_correction1", "the first moment's bias is not corrected", ddp1,
          ("static_cast<float>(1.0 / (1.0 - std::pow(s.beta1, t)))", "1.0F + 0.0F * static_cast<float>(t)"))
    f.add("adamw.no_correction2", "the second moment's bias is not corrected", ddp1,
          ("static_cast<float>(1.0 / (1.0 - std::pow(s.beta2, t)))", "1.0F + 0.0F * static_cast<float>(t)"))
    f.add("adamw.betas_swapped", "beta1 and beta2 are swapped", ddp1,
          ("static_cast<float>(s.beta1),", "static_cast<float>(s.beta2),"),
          (".beta2 = static_cast<float>(s.beta2),", ".beta2 = static_cast<float>(s.beta1),"))
    f.add("adamw.tensor_left_out", "one tensor is never updated", zero3,
          ("    const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(slice.tensor)];\n    context_.kernels.adamw(",
           "    const TensorInfo& tensor = context_.tensors[static_cast<std::size_t>(slice.tensor)];\n"
           "    if (slice.tensor == 5) continue;\n    context_.kernels.adamw("))
    f.add("adamw.wrong_parameters", "updated values go to another shard's parameters", run("zero1", 2, "tiny_bf16_gb4"),
          ("view(*parameters_, residence_.parameters.owned_at[i], slice.count), gradient(i)",
           "view(*parameters_, slice.offset, slice.count), gradient(i)"))
    f.add("accumulate.replaces", "adding replaces", zero3, ("    k.accumulate(sum, from);\n", "    k.scaled_copy(sum, from, 1.0F);\n"))
    f.add("accumulate.loses_fp32_sum", "the fp32 accumulator is overwritten by each micro-batch",
          run("zero3", 1, "tiny_bf16_gb4", "--fp32-grad-accum"),
          ("    k.accumulate(sum, from);\n", "    k.scaled_copy(sum, from, accumulator_ ? 0.5F : 1.0F);\n"))

    f.in_file("src/train/tensor_parallel.cpp")
    f.add("tp.cast_of_wrong_block", "with bf16 messages each rank sends the first block's tokens",
          run("mesh2d", 2, "tiny_bf16_gb4", "--tp 2 --sequence-parallel"),
          ("range == Range::whole ? 0 : rank() * block", "range == Range::whole ? 0 : 0 * block"))

    # --- Layouts -------------------------------------------------------------------------------------------------------
    f.in_file("src/shard/layout.cpp")
    f.add("layout.padding", "whole tensors do not skip the padding between buckets", run("zero1", 3, None, odd),
          ("    offset += (padding == Padding::included ? group.gathered() : group.real()).count();\n",
           "    offset += (padding == Padding::none ? group.gathered() : group.real()).count();\n"))
    f.add("layout.flat_short_by_one", "a flat shard ends one element early", run("zero3", 2, tiny, "--layout flat"),
          ("    const std::int64_t end = std::min(last, tensor.offset + tensor.count);\n",
           "    const std::int64_t end = std::min(last - 1, tensor.offset + tensor.count);\n"))

    # --- Schedules -----------------------------------------------------------------------------------------------------
    f.in_file("src/comm/schedule.cpp")
    ring3 = run("zero3", 3, "uneven_fp32_gb6", "--algorithm ring")
    f.add("ring.reduce_one_off", "ring reduce-scatter adds what arrives to the wrong block", ring3,
          ("p.segment(-s - 2, segment), OnReceive::add", "p.segment(-s - 1, segment), OnReceive::add"))
    f.add("ring.gather_one_off", "ring all-gather sends the block after", ring3,
          ("p.segment(-s, segment), p.rank(-1)", "p.segment(-s + 1, segment), p.rank(-1)"))
    f.add("doubling.drops_block", "a doubling step of several blocks leaves one out",
          run("zero3", 4, tiny, "--algorithm doubling"),
          ("const int count = std::min(distance, ranks - distance);", "const int count = std::max(1, std::min(distance, ranks - distance) - 1);"))
    direct = "  for (int i = 1; i < r.ranks; ++i)\n    chain.steps.push_back(exchange("
    f.add("direct.own_block_twice", "direct reduce-scatter adds the own block to itself",
          run("zero3", 2, tiny, "--algorithm direct"), (direct, direct.replace("i = 1", "i = 0")))
    f.add("direct.gather_wrong_block", "direct all-gather stores what arrives in the sender's opposite's block",
          run("zero3", 3, "uneven_fp32_gb6", "--algorithm direct"),
          ("p.segment(-i, segment), OnReceive::store", "p.segment(i, segment), OnReceive::store"))
    f.add("chunk.one_off", "an all-reduce's uneven blocks leave the last elements out", run("ddp", 3, None, small),
          ("return {begin, base + (block < extra ? 1 : 0)};", "return {begin, base + (block + 1 < extra ? 1 : 0)};"))

    f.in_file("src/comm/scheduled_communicator.cpp")
    f.add("direct.bf16_own_block_twice", "the fp32 accumulator starts with twice the own block",
          run("zero3", 2, "tiny_bf16_gb4", "--reduce-dtype bf16 --algorithm direct"),
          ("bodies::scaled_copy(i, accumulator(slot), own, 1.0F)", "bodies::scaled_copy(i, accumulator(slot), own, 2.0F)"))
    f.add("direct.bf16_sum_not_stored", "the fp32 accumulator is not stored back",
          run("zero3", 2, "tiny_bf16_gb4", "--reduce-dtype bf16 --algorithm direct"),
          ("own, accumulator(slot), range.count", "own, own, range.count"))

    # --- The decoder and its exchanges ---------------------------------------------------------------------------------
    f.in_file("src/model/decoder.cpp")
    f.add("tp.no_sum_after_embedding", "tensor-parallel ranks do not sum the embedding", tp2,
          ("    if (tp() > 1) all_reduce(y, 0);\n", ""))
    summed = "  } else {\n    all_reduce(partial, layer);\n  }\n"
    f.add("tp.no_sum_after_wo", "tensor-parallel ranks do not sum attention's output", tp2,
          (summed, summed.replace("all_reduce", "if (residual != input_[static_cast<std::size_t>(layer)]) all_reduce")))
    f.add("tp.no_sum_after_w2", "tensor-parallel ranks do not sum the feed-forward output", tp2,
          (summed, summed.replace("all_reduce", "if (residual == input_[static_cast<std::size_t>(layer)]) all_reduce")))
    f.add("tp.no_sum_in_backward", "gradients of what the norms made are not summed over tp", tp2,
          ("  if (tp() > 1) all_reduce(d_normed, layer);\n", ""))
    f.add("tp.no_gather_in_backward", "sequence-parallel backward does not gather the stream's gradient", tp2_sequence,
          ("  all_gather(whole, layer);\n  return whole;\n", "  return whole;\n"))
    f.add("tp.no_scatter_in_backward", "sequence-parallel backward does not sum what the norms receive", tp2_sequence,
          ("    reduce_scatter(d_normed, layer);\n", ""))
    f.add("tp.loss_without_maximum", "softmax uses each rank's own largest logit", tp2,
          ("  all_reduce_exactly(rows.largest, Reduction::maximum, layer);\n", ""))
    f.add("tp.loss_without_target", "the target's logit is not fetched from the rank that has it", tp2,
          ("  all_reduce_exactly(rows.target_logit, Reduction::sum, layer);\n", ""))
    f.add("tp.loss_without_total", "softmax is normalised over each rank's own part of the vocabulary", tp2,
          ("  all_reduce_exactly(rows.total, Reduction::sum, layer);\n", ""))
    f.add("recompute.wrong_piece", "recomputing the feed-forward half starts from the block's input",
          run("zero3", 2, tiny, "--recompute full"),
          ("  enter_region(layer, tensor_index(dims(), TensorRole::norm2, layer), weights, kept.x_middle, kept.normed2);\n",
           "  enter_region(layer, tensor_index(dims(), TensorRole::norm2, layer), weights, y == nullptr ? x : kept.x_middle,\n"
           "               kept.normed2);\n"))

    f.in_file("src/model/layer_math.cpp")
    f.add("rope.not_turned_back", "the gradient of queries is turned forward instead of back", ddp1,
          ("k.rope(queries(work.dq), table(tables_.cosines), table(tables_.sines), bodies::Rotation::inverse);",
           "k.rope(queries(work.dq), table(tables_.cosines), table(tables_.sines), bodies::Rotation::forward);"))
    f.add("rope.keys_not_turned_back", "the gradient of keys is not turned back", ddp1,
          ("    k.rope(keys(work.dk), table(tables_.cosines), table(tables_.sines), bodies::Rotation::inverse);\n", ""))
    f.add("loss.mean_over_sequence", "the mean is over a sequence's tokens, not the micro-batch's",
          run("ddp", 1, tiny, "--micro-batch 2"),
          ("return 1.0F / static_cast<float>(tokens_);", "return 1.0F / static_cast<float>(dims_.seq);"))
    f.add("swiglu.w1_w3_swapped_in_backward", "gradients of w1 and w3 are exchanged", ddp1,
          ("dw(TensorRole::w3), d_up", "dw(TensorRole::w3), d_gate"),
          ("dw(TensorRole::w1), d_gate", "dw(TensorRole::w1), d_up"))

    f.in_file("src/model/decoder.hpp", "src/model/layer_math.cpp")
    f.add("rms_norm.epsilon", "RMSNorm's epsilon is 1e-6", ddp1, ("norm_epsilon = 1e-5F", "norm_epsilon = 1e-6F"))

    f.in_file("src/model/initial_state.cpp")
    f.add("data.target_one_off", "targets are the inputs themselves", ddp1,
          ("if (p > 0) batch.targets[offset + p - 1] =", "if (p < length) batch.targets[offset + p] ="))
    f.add("data.step_ignored", "every step trains the first step's data", ddp1,
          ("(static_cast<std::uint64_t>(step) << 32U)", "(static_cast<std::uint64_t>(0 * step) << 32U)"))

    # --- Kernels -------------------------------------------------------------------------------------------------------
    f.in_file("kernels/openmp/openmp_kernels.cpp")
    f.add("rope.position_one_off", "positions count from 1 and wrap around", ddp1,
          ("(row % cosines.rows) * cosines.columns", "((row + 1) % cosines.rows) * cosines.columns"))
    f.add("attention.scale", "scores are divided by the head size, not its root", ddp1,
          ("1.0F / std::sqrt(static_cast<float>(shape.head_size))", "1.0F / static_cast<float>(shape.head_size)"))
    f.add("attention.kv_heads", "query head i uses kv head i mod kv heads", ddp1,
          ("for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)",
           "for (std::int64_t head = kv_head + 0 * group; head < shape.heads; head += shape.kv_heads)"))
    f.add("attention.no_mask", "every position sees all positions", ddp1,
          ("log_sum_exp.data() + tile.lse_offset + row, tile.first + row, tile.reach,",
           "log_sum_exp.data() + tile.lse_offset + row, tile.reach - 1, tile.reach,"),
          ("delta, tile.first + row, tile.reach, scale);", "delta, tile.reach - 1, tile.reach, scale);"))
    f.add("attention.mask_one_off", "every position sees the next one too", ddp1,
          ("log_sum_exp.data() + tile.lse_offset + row, tile.first + row, tile.reach,",
           "log_sum_exp.data() + tile.lse_offset + row, std::min(tile.first + row + 1, tile.reach - 1), tile.reach,"),
          ("delta, tile.first + row, tile.reach, scale);",
           "delta, std::min(tile.first + row + 1, tile.reach - 1), tile.reach, scale);"))
    f.add("attention.group_gradient", "a kv head's gradient keeps only its last query head's share", ddp1,
          ("gemm({.m = tile.reach, .n = shape.head_size, .k = tile.rows, .beta = 1.0F}, ds_transposed,",
           "gemm({.m = tile.reach, .n = shape.head_size, .k = tile.rows, .beta = 0.0F}, ds_transposed,"))

    f.in_file("kernels/bodies/rows.hpp", "kernels/openmp/openmp_kernels.cpp")
    f.add("rope.halves", "RoPE turns pairs (i, i + half) instead of (2i, 2i + 1)", ddp1,
          ("    const float even = head[2 * pair];\n    const float odd = head[2 * pair + 1];\n"
           "    head[2 * pair] = even * cosine - odd * sine;\n    head[2 * pair + 1] = even * sine + odd * cosine;\n",
           "    const float even = head[pair];\n    const float odd = head[pair + width / 2];\n"
           "    head[pair] = even * cosine - odd * sine;\n    head[pair + width / 2] = even * sine + odd * cosine;\n"))
    f.add("rms_norm.mean", "RMSNorm divides by width - 1", ddp1,
          ("lanes.sum(squares) / static_cast<float>(width) + epsilon", "lanes.sum(squares) / static_cast<float>(width - 1) + epsilon"))
    f.add("rms_norm.gradient", "RMSNorm's backward leaves the mean out", ddp1,
          ("return dx[c] + r * (widen(weight[c]) * dy[c] - x[c] * r * r * mean);",
           "return dx[c] + r * (widen(weight[c]) * dy[c] - 0.0F * x[c] * r * r * mean);"))
    f.add("residual.lost_in_backward", "a norm's backward replaces the residual's gradient", ddp1,
          ("return dx[c] + r * (widen", "return r * (widen"))

    f.in_file("kernels/bodies/elementwise.hpp", "kernels/openmp/openmp_kernels.cpp")
    f.add("swiglu.derivative", "SwiGLU's derivative leaves silu's second term out", ddp1,
          ("(1.0F + gate[i] * (1.0F - sigmoid))", "(1.0F + 0.0F * gate[i] * (1.0F - sigmoid))"))
    f.add("adamw.epsilon_inside", "epsilon is added under the root", ddp1,
          ("(std::sqrt(v * c.inverse_correction2) + c.epsilon)", "std::sqrt(v * c.inverse_correction2 + c.epsilon)"))
    f.add("adamw.master_not_used", "the update starts from the rounded parameter", run("ddp", 1, "tiny_bf16_gb4"),
          ("const float decayed = master[i] - c.learning_rate * c.weight_decay * master[i];",
           "const float decayed = widen(parameter[i]) - c.learning_rate * c.weight_decay * widen(parameter[i]);"))
    f.add("adamw.decay_coupled", "weight decay goes through the moments (L2 regularisation)", ddp1,
          ("const float g = gradient_factor * widen(gradient[i]);",
           "const float g = gradient_factor * widen(gradient[i]) + c.weight_decay * master[i];"),
          ("const float decayed = master[i] - c.learning_rate * c.weight_decay * master[i];", "const float decayed = master[i];"))

    f.add("clip.squared_factor", "gradients are scaled by the square of the clip factor", run("zero3", 2, "tiny_fp32_gb4_clip1"),
          ("static_cast<float>(factor) : 1.0F", "static_cast<float>(factor * factor) : 1.0F"))

    f.in_file("kernels/bodies/portable.hpp", "kernels/openmp/openmp_kernels.cpp", "src/train/resident_state.cpp", "src/comm/scheduled_communicator.cpp",
              "src/comm/mpi/mpi_native.cpp", "src/train/check.cpp")
    f.add("bf16.truncated", "bf16 values are cut off instead of rounded", run("ddp", 1, "tiny_bf16_gb4"),
          ("bits + 0x7FFFU + ((bits >> 16) & 1U)", "bits + 0U * (0x7FFFU + ((bits >> 16) & 1U))"))
    return f.mutants


class Workbench:
    """A copy of the sources with a build of its own. One fault at a time is in it."""

    def __init__(self, folder: Path = BUILD) -> None:
        self.source = folder / "source"
        self.build = folder / "build"
        self._refresh()
        self._faulty: Mutant | None = None
        self._changed: set[Path] = set()

    def _refresh(self) -> None:
        """Copies what differs from the sources, so that an old build is used again."""
        self.source.mkdir(parents=True, exist_ok=True)
        wanted = {p.relative_to(runs.ROOT) for name in COPIED for p in _files_below(runs.ROOT / name)}
        for name in COPIED:
            for path in list(_files_below(self.source / name)):
                if path.relative_to(self.source) not in wanted:
                    path.unlink()
        for path in sorted(wanted):
            original, copy = runs.ROOT / path, self.source / path
            if not copy.exists() or copy.read_bytes() != original.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(original, copy)

    def configure(self) -> None:
        _command(["cmake", "-S", str(self.source), "-B", str(self.build), *CMAKE])

    def compile(self, *targets: str) -> None:
        _command(["cmake", "--build", str(self.build), "-j", str(os.cpu_count() or 1), "--target", *targets])

    def insert(self, mutant: Mutant) -> None:
        """Takes the last fault out and puts this one in; the next build sees both changes."""
        self.restore()
        path = self.source / mutant.file
        text = (runs.ROOT / mutant.file).read_text()
        for old, new in mutant.edits:
            assert text.count(old) == 1, f"{mutant.name}: {mutant.file} has {text.count(old)} times {old!r}; adapt the fault"
            text = text.replace(old, new)
        self._write(path, text, mutant.users)
        self._faulty = mutant

    def restore(self) -> None:
        if self._faulty is not None:
            self._write(self.source / self._faulty.file, (runs.ROOT / self._faulty.file).read_text(), self._faulty.users)
            self._faulty = None

    def _write(self, path: Path, text: str, users: tuple[str, ...]) -> None:
        before = path.stat()
        path.write_text(text)
        if users:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        for user in users:
            os.utime(self.source / user)

    def judge(self, configuration: Configuration) -> Outcome:
        """Runs the executables as they are now."""
        command, path = self._command(configuration)
        try:
            finished = runs.execute(command, runs.scratch_folder(), RUN_TIMEOUT_S)
            if finished.code == 3 and "check failed: " in finished.stderr:
                line = next(line for line in finished.stderr.splitlines() if "check failed: " in line)
                return Outcome("-c", line.partition("check failed: ")[2])
            if finished.code not in (0, 3):
                return Outcome("", str(finished))
            # The file of a run whose ledger disagrees is whole too.
            outcome = self._against_golden(configuration, path)
            return outcome if outcome.caught_by or finished.code == 0 else Outcome("", str(finished))
        except AssertionError as hang:
            return Outcome("", str(hang))
        finally:
            path.unlink(missing_ok=True)

    def _command(self, configuration: Configuration) -> tuple[list[str], Path]:
        path = runs.new_file()
        options = ["-c", "--threads", "1", "--trace", "steps", "-o", str(path), *configuration.options.split()]
        if configuration.golden:
            wanted = golden.golden(configuration.golden)
            options += [*runs.model_options(wanted["model"]), "--seed", str(wanted["seed"]),
                        "--global-batch", str(wanted["global_batch"]), "--param-dtype", wanted["param_dtype"],
                        "-w", "0", "-n", str(len(wanted["losses"]))]
            options += ["--clip", str(wanted["clip"])] if wanted["clip"] else []
        executable = str(self.build / "bin" / configuration.scenario)
        return [runs.MPIEXEC, "-n", str(configuration.ranks), executable, *options], path

    @staticmethod
    def _against_golden(configuration: Configuration, path: Path) -> Outcome:
        if configuration.golden is None:
            return Outcome("", "the check passed, and no golden file fits the configuration")
        try:
            golden.assert_agrees(runs.Trace(path), configuration.golden)
        except AssertionError as difference:
            return Outcome("golden", _summary(str(difference)))
        return Outcome("", "the check passed and the golden file agrees")


def _summary(text: str) -> str:
    """The telling lines of numpy's report."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("Mismatched", "Max relative", "Max absolute"))]
    return "; ".join(telling) or lines[0]


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def _command(words: list[str]) -> None:
    finished = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=runs.environment())
    assert finished.returncode == 0, f"{' '.join(words)}\n{finished.stdout[-6000:]}"


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    outcome: Outcome
    seconds: float

    @property
    def survived(self) -> str | None:
        """Why this is no catch."""
        if not self.outcome.caught_by:
            return f"{self.mutant.name} survived: {self.mutant.broken} ({self.mutant.configuration}): {self.outcome.message}"
        if self.outcome.caught_by == "-c":
            named = NAMED.search("check failed: " + self.outcome.message)
            if named is None:
                return f"{self.mutant.name}: the message names no tensor, rank and index: {self.outcome.message}"
            if not re.search(self.mutant.tensor, named["tensor"]):
                return f"{self.mutant.name}: the message names {named['tensor']}, not {self.mutant.tensor}: {self.outcome.message}"
        return None


def verdicts(bench: Workbench, mutants: list[Mutant]) -> Iterator[Verdict]:
    """First that every configuration passes without a fault, then each fault's verdict."""
    bench.configure()
    bench.compile(*TARGETS)
    for configuration in dict.fromkeys(mutant.configuration for mutant in mutants):
        outcome = bench.judge(configuration)
        if configuration.golden is None and outcome.message.startswith("the check passed"):
            continue
        assert outcome == Outcome("", "the check passed and the golden file agrees"), f"without a fault: {configuration}: {outcome}"
    try:
        for mutant in mutants:
            begin = time.monotonic()
            bench.insert(mutant)
            bench.compile(mutant.configuration.scenario)
            outcome = bench.judge(mutant.configuration)
            yield Verdict(mutant, outcome, time.monotonic() - begin)
    finally:
        bench.restore()
