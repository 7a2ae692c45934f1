"""Training on a dp x tp mesh agrees with an independent PyTorch program, whatever the schedule.

Where no golden file has the shape, a run with one rank is the reference; test_golden.py holds that against PyTorch.
"""

import pytest
import runs
from golden import (
    assert_agrees,
    assert_covers_every_pair,
    assert_describes_the_mesh,
    assert_identical_training,
    assert_same_training,
    golden,
    train,
)


def mesh(dp: int, tp: int) -> str:
    return f"--dp {dp} --tp {tp}"


@pytest.mark.parametrize("sequence_parallel", ["", "--sequence-parallel"])
@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("name", ["tiny_fp32_gb4", "tiny_bf16_gb4", "tiny_fp32_gb4_clip1"])
def test_tiny(name: str, dp: int, tp: int, sequence_parallel: str) -> None:
    trace = train("mesh2d", dp * tp, name, f"{mesh(dp, tp)} {sequence_parallel}")
    assert_agrees(trace, name)
    assert trace.config["options"]["grad-accum"] == 4 // dp
    assert_describes_the_mesh(trace, dp, tp)


@pytest.mark.parametrize("sequence_parallel", ["", "--sequence-parallel"])
def test_forty_steps(sequence_parallel: str) -> None:
    trace = train("mesh2d", 4, "tiny_fp32_gb16_40steps", f"--tp 2 --micro-batch 2 --window 7 {sequence_parallel}", warmup=3)
    assert_agrees(trace, "tiny_fp32_gb16_40steps")
    assert_describes_the_mesh(trace, 2, 2)


@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (2, 1), (3, 1), (6, 1), (1, 3), (2, 3)])
def test_uneven_tied(dp: int, tp: int) -> None:
    """Neither the vocabulary (101) nor ffn (100) divides by 3; 3 kv heads leave one for each rank."""
    trace = train("mesh2d", dp * tp, "uneven_fp32_gb6", mesh(dp, tp), warmup=0)
    assert_agrees(trace, "uneven_fp32_gb6")
    assert_describes_the_mesh(trace, dp, tp)


def mesh_options(dp_tp: tuple[int, int], sequence_parallel: str, recompute: str, layout: str, wrap: str, reshard: str,
                 prefetch: str, communicators: int, rs_wait: str, algorithm: str, progress: str) -> str:
    return (f"{mesh(*dp_tp)} {'--sequence-parallel' if sequence_parallel == 'on' else ''} --recompute {recompute} "
            f"--layout {layout} --wrap {wrap} --reshard-after-forward {reshard} --prefetch {prefetch} "
            f"--communicators {communicators} --rs-wait {rs_wait} --algorithm {algorithm} --progress {progress}")


# Every pair of values of any two columns occurs (test_schedules_cover_every_pair).
SCHEDULES = [
    ((2, 2), "off", "full", "per-parameter", "blocks", "all", "10", 1, "end", "doubling", "poll"),
    ((1, 2), "on", "full", "flat", "root", "blocks", "2,1", 2, "next", "ring", "thread"),
    ((2, 1), "off", "none", "flat", "blocks", "none", "1", 2, "end", "native", "none"),
    ((2, 2), "on", "none", "per-parameter", "root", "none", "0", 1, "next", "direct", "none"),
    ((1, 2), "off", "none", "per-parameter", "blocks", "blocks", "0", 1, "end", "ring", "thread"),
    ((2, 1), "on", "none", "flat", "root", "all", "10", 2, "next", "doubling", "poll"),
    ((2, 1), "on", "full", "per-parameter", "blocks", "all", "1", 1, "next", "native", "thread"),
    ((1, 2), "off", "full", "per-parameter", "blocks", "all", "2,1", 2, "end", "direct", "none"),
    ((2, 2), "off", "none", "flat", "root", "blocks", "2,1", 1, "end", "native", "poll"),
    ((1, 2), "on", "full", "flat", "root", "none", "0", 2, "end", "doubling", "poll"),
    ((2, 1), "off", "full", "flat", "root", "blocks", "1", 2, "next", "direct", "poll"),
    ((2, 2), "on", "full", "flat", "root", "none", "10", 2, "next", "ring", "thread"),
    ((1, 2), "on", "full", "flat", "blocks", "blocks", "10", 2, "end", "native", "none"),
    ((2, 1), "on", "full", "per-parameter", "root", "all", "0", 2, "next", "ring", "none"),
    ((2, 1), "on", "none", "flat", "root", "none", "2,1", 1, "next", "doubling", "thread"),
    ((2, 2), "on", "full", "flat", "blocks", "blocks", "1", 2, "next", "doubling", "none"),
    ((1, 2), "off", "none", "flat", "root", "all", "1", 2, "next", "ring", "poll"),
    ((1, 2), "on", "full", "flat", "blocks", "none", "10", 1, "next", "direct", "thread"),
    ((1, 2), "off", "none", "per-parameter", "root", "all", "0", 1, "end", "native", "poll"),
]
VALUES = [
    [(1, 2), (2, 1), (2, 2)],
    ["off", "on"],
    ["none", "full"],
    ["per-parameter", "flat"],
    ["blocks", "root"],
    ["all", "blocks", "none"],
    ["0", "1", "10", "2,1"],
    [1, 2],
    ["next", "end"],
    ["direct", "ring", "doubling", "native"],
    ["none", "poll", "thread"],
]


def test_schedules_cover_every_pair() -> None:
    assert_covers_every_pair(SCHEDULES, VALUES)


@pytest.mark.parametrize("index", range(len(SCHEDULES)))
def test_schedules(index: int) -> None:
    dp, tp = SCHEDULES[index][0]
    trace = train("mesh2d", dp * tp, "tiny_fp32_gb4", mesh_options(*SCHEDULES[index]))
    assert_agrees(trace, "tiny_fp32_gb4")
    assert_describes_the_mesh(trace, dp, tp)


@pytest.mark.parametrize("options", ["", "--layout flat --wrap root --prefetch 2,1 --reshard-after-forward blocks"])
def test_tp_1_is_zero3(options: str) -> None:
    assert_identical_training(train("mesh2d", 2, "tiny_fp32_gb4", f"--dp 2 --tp 1 --sequence-parallel {options}"),
                              train("zero3", 2, "tiny_fp32_gb4", options))


@pytest.mark.parametrize("sequence_parallel", ["", "--sequence-parallel"])
def test_recomputation_changes_no_digit(sequence_parallel: str) -> None:
    options = f"--tp 2 {sequence_parallel}"
    assert_identical_training(train("mesh2d", 4, "tiny_fp32_gb4", f"{options} --recompute full"),
                              train("mesh2d", 4, "tiny_fp32_gb4", options))


@pytest.mark.parametrize(("options", "dp", "tp"), [("--tp 2", 2, 2), ("--dp 2", 2, 1), ("--dp -1 --tp 4 --kv-heads 4", 1, 4),
                                                   ("--dp 2 --tp -1", 2, 2), ("", 4, 1)])
def test_one_side_of_the_mesh_is_derived(options: str, dp: int, tp: int) -> None:
    trace = runs.trace("mesh2d", dp * tp, *options.split(), "-n", "1", "-w", "0", "--threads", "1")
    assert_describes_the_mesh(trace, dp, tp)


SHORT = ["--param-dtype", "fp32", "--global-batch", "4", "-w", "1", "-n", "2", "--trace", "steps", "--threads", "1"]

# Options of the model, and how many ranks share it: ceil chunks leave the last ranks fewer rows, or none.
SHAPES = [
    ("--vocab 101", 2),
    ("--vocab 101 --tied", 2),
    ("--ffn 77", 2),
    ("--vocab 101 --ffn 77 --tied", 2),
    ("--kv-heads 4", 4),
    ("--kv-heads 4 --tied", 4),
    ("--kv-heads 4 --vocab 5", 4),  # chunks of 2, 2, 1, 0 rows
    ("--kv-heads 4 --vocab 5 --tied", 4),
    ("--kv-heads 4 --vocab 1", 4),
    ("--kv-heads 4 --ffn 5", 4),
    ("--kv-heads 4 --ffn 1 --vocab 3", 4),
    ("--heads 6 --kv-heads 3 --hidden 36 --ffn 50 --seq 33 --vocab 70", 3),
]


@pytest.mark.parametrize("sequence_parallel", ["", "--sequence-parallel"])
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_uneven_shapes_agree_with_one_rank(index: int, sequence_parallel: str) -> None:
    shape, tp = SHAPES[index]
    alone = runs.trace("ddp", 1, *SHORT, *shape.split())
    extra = "--layout flat --recompute full" if index % 2 else ""
    for dp in {1, 2} if tp == 2 else {1}:
        trace = runs.trace("mesh2d", dp * tp, *SHORT, *shape.split(), *mesh(dp, tp).split(), "-c", *sequence_parallel.split(),
                           *extra.split())
        assert trace.attributes["check"] == "passed"
        assert_same_training(trace, alone)
        assert_describes_the_mesh(trace, dp, tp)


@pytest.mark.parametrize("sequence_parallel", ["", "--sequence-parallel"])
@pytest.mark.parametrize(("dp", "tp", "options"), [
    (1, 2, "--fp32-grad-accum"),
    (2, 2, "--reduce-dtype bf16 --layout flat"),
    (2, 2, "--recompute full --clip 0.5 --grad-accum 2 --algorithm doubling"),
    (1, 4, "--kv-heads 4 --tied --algorithm ring"),
])
def test_mixed_precision_passes_the_check(dp: int, tp: int, options: str, sequence_parallel: str) -> None:
    trace = runs.trace("mesh2d", dp * tp, *mesh(dp, tp).split(), *options.split(), *sequence_parallel.split(), "-c", "-w", "1",
                       "-n", "3", "--threads", "1")
    assert trace.attributes["check"] == "passed"


def test_masters_cover_the_declared_model() -> None:
    wanted = golden("uneven_fp32_gb6")
    tensors = train("mesh2d", 6, "uneven_fp32_gb6", mesh(2, 3), warmup=0)["tensors"]
    assert tensors["elements"].sum() == wanted["psi"]
