"""Training agrees with an independent PyTorch program, whatever the schedule: the four data-parallel scenarios.

What agreement means is in golden.py; dp x tp meshes are in test_golden_mesh.py.
"""

import numpy as np
import pytest
import runs
from golden import (
    BF16,
    assert_agrees,
    assert_covers_every_pair,
    assert_describes_the_mesh,
    assert_identical_training,
    assert_same_training,
    train,
)

SCENARIOS = ["ddp", "zero1", "zero2", "zero3"]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", ["tiny_fp32_gb4", "tiny_bf16_gb4", "tiny_fp32_gb4_clip1"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_tiny(scenario: str, name: str, ranks: int) -> None:
    trace = train(scenario, ranks, name)
    assert_agrees(trace, name)
    assert trace.config["options"]["grad-accum"] == 4 // ranks
    assert_describes_the_mesh(trace, dp=ranks, tp=1)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_forty_steps(scenario: str) -> None:
    # In windows of 7, so that steps after a flush are covered too.
    trace = train(scenario, 4, "tiny_fp32_gb16_40steps", "--micro-batch 2 --window 7", warmup=3)
    assert_agrees(trace, "tiny_fp32_gb16_40steps")
    flags = trace.steps_agreed("warmup")
    assert np.flatnonzero(flags).tolist() == [0, 1, 2, 10, 17, 24, 31, 38]


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_uneven_tied(scenario: str, ranks: int) -> None:
    assert_agrees(train(scenario, ranks, "uneven_fp32_gb6", warmup=0), "uneven_fp32_gb6")


def zero3_options(wrap: str, reshard: str, layout: str, prefetch: str, communicators: int, rs_wait: str, algorithm: str,
                  progress: str) -> str:
    return (f"--wrap {wrap} --reshard-after-forward {reshard} --layout {layout} --prefetch {prefetch} "
            f"--communicators {communicators} --rs-wait {rs_wait} --algorithm {algorithm} --progress {progress}")


# Every pair of values of any two columns occurs (test_schedules_cover_every_pair).
SCHEDULES = [
    ("root", "none", "flat", "2,1", 1, "end", "ring", "thread"),
    ("blocks", "all", "per-parameter", "2", 2, "next", "doubling", "none"),
    ("blocks", "blocks", "flat", "10", 1, "next", "native", "poll"),
    ("root", "blocks", "per-parameter", "1", 2, "end", "native", "poll"),
    ("root", "all", "flat", "0", 1, "end", "direct", "none"),
    ("blocks", "none", "flat", "1", 2, "next", "ring", "thread"),
    ("blocks", "blocks", "per-parameter", "2,1", 2, "next", "direct", "none"),
    ("root", "none", "per-parameter", "10", 1, "end", "doubling", "thread"),
    ("root", "blocks", "per-parameter", "2", 1, "next", "ring", "thread"),
    ("blocks", "none", "flat", "0", 2, "end", "doubling", "poll"),
    ("blocks", "none", "flat", "2", 1, "end", "native", "none"),
    ("root", "all", "per-parameter", "0", 1, "next", "native", "thread"),
    ("blocks", "all", "per-parameter", "10", 2, "next", "ring", "none"),
    ("root", "all", "flat", "1", 1, "next", "direct", "poll"),
    ("blocks", "all", "flat", "2,1", 2, "next", "native", "poll"),
    ("blocks", "none", "flat", "2", 2, "end", "direct", "poll"),
    ("blocks", "blocks", "flat", "0", 1, "next", "ring", "poll"),
    ("blocks", "blocks", "per-parameter", "2,1", 1, "next", "doubling", "none"),
    ("blocks", "blocks", "per-parameter", "10", 2, "next", "direct", "thread"),
    ("root", "all", "per-parameter", "1", 2, "end", "doubling", "none"),
]
VALUES = [
    ["blocks", "root"],
    ["all", "blocks", "none"],
    ["per-parameter", "flat"],
    ["0", "1", "2", "10", "2,1"],
    [1, 2],
    ["next", "end"],
    ["direct", "ring", "doubling", "native"],
    ["none", "poll", "thread"],
]


def test_schedules_cover_every_pair() -> None:
    assert_covers_every_pair(SCHEDULES, VALUES)


@pytest.mark.parametrize("index", range(len(SCHEDULES)))
def test_zero3_schedules(index: int) -> None:
    ranks = (2, 4)[index % 2]
    assert_agrees(train("zero3", ranks, "tiny_fp32_gb4", zero3_options(*SCHEDULES[index])), "tiny_fp32_gb4")


@pytest.mark.parametrize(("ranks", "options"), [
    (3, "--layout flat --prefetch 0 --algorithm doubling --reshard-after-forward none"),
    (3, "--layout per-parameter --prefetch 2,1 --algorithm native --communicators 2"),
    (6, "--layout flat --prefetch 10 --algorithm ring --rs-wait end"),
    (6, "--layout flat --prefetch 2 --algorithm hierarchical --ranks-per-node 3"),
    (6, "--layout per-parameter --prefetch 2 --algorithm direct --progress thread --communicators 2 --rs-wait end"),
])
def test_zero3_uneven_schedules(ranks: int, options: str) -> None:
    assert_agrees(train("zero3", ranks, "uneven_fp32_gb6", options, warmup=0), "uneven_fp32_gb6")


# Tensors of one MiB and more, so that buckets of one and two MiB close.
SEVERAL_BUCKETS = ["--layers", "2", "--hidden", "128", "--ffn", "300", "--vocab", "2100", "--seq", "8", "--param-dtype", "fp32",
                   "--global-batch", "12", "-w", "1", "-n", "2", "--trace", "steps", "--threads", "1"]


def bucket_options(gather: str, bucket_mb: int, communicators: int, rs_wait: str, algorithm: str, progress: str,
                   recompute: str) -> str:
    return (f"--param-gather {gather} --bucket-mb {bucket_mb} --communicators {communicators} --rs-wait {rs_wait} "
            f"--algorithm {algorithm} --progress {progress} --recompute {recompute}")


# Every pair of values of any two columns occurs (test_bucket_schedules_cover_every_pair).
BUCKET_SCHEDULES = [
    ("zero2", 4, "overlap", 25, 1, "next", "native", "thread", "full"),
    ("zero1", 3, "end", 2, 2, "end", "direct", "poll", "full"),
    ("zero1", 2, "overlap", 1, 1, "end", "doubling", "none", "none"),
    ("zero2", 2, "end", 1, 2, "next", "ring", "poll", "none"),
    ("zero1", 4, "end", 25, 2, "end", "ring", "thread", "none"),
    ("zero2", 3, "overlap", 2, 1, "next", "direct", "none", "none"),
    ("zero1", 3, "end", 1, 2, "end", "native", "none", "full"),
    ("zero2", 2, "overlap", 2, 2, "end", "doubling", "thread", "full"),
    ("zero1", 3, "end", 25, 1, "next", "doubling", "poll", "none"),
    ("zero1", 4, "overlap", 2, 1, "end", "ring", "none", "full"),
    ("zero2", 4, "overlap", 1, 1, "end", "direct", "thread", "full"),
    ("zero1", 2, "overlap", 2, 1, "end", "native", "poll", "none"),
    ("zero2", 2, "end", 25, 1, "end", "direct", "none", "full"),
    ("zero1", 4, "end", 2, 1, "next", "doubling", "poll", "full"),
    ("zero2", 3, "overlap", 1, 1, "end", "ring", "thread", "none"),
]
BUCKET_VALUES = [
    ["zero1", "zero2"],
    [2, 3, 4],
    ["end", "overlap"],
    [1, 2, 25],
    [1, 2],
    ["next", "end"],
    ["direct", "ring", "doubling", "native"],
    ["none", "poll", "thread"],
    ["none", "full"],
]


def test_bucket_schedules_cover_every_pair() -> None:
    assert_covers_every_pair(BUCKET_SCHEDULES, BUCKET_VALUES)


@pytest.mark.parametrize("index", range(len(BUCKET_SCHEDULES)))
def test_bucket_schedules(index: int) -> None:
    scenario, ranks, *options = BUCKET_SCHEDULES[index]
    trace = runs.trace(scenario, ranks, *SEVERAL_BUCKETS, *bucket_options(*options).split())
    assert_same_training(trace, runs.trace("ddp", 1, *SEVERAL_BUCKETS))


@pytest.mark.parametrize(("scenario", "ranks", "name", "options"), [
    ("zero1", 4, "tiny_fp32_gb4", "--param-gather overlap"),
    ("zero1", 2, "tiny_bf16_gb4", "--param-gather overlap --communicators 2 --fp32-grad-accum"),
    ("zero1", 3, "uneven_fp32_gb6", "--param-gather overlap --rs-wait end --algorithm ring"),
    ("zero2", 2, "tiny_fp32_gb4_clip1", "--param-gather overlap --communicators 2"),
    ("zero2", 4, "tiny_bf16_gb4", "--param-gather overlap --reduce-dtype bf16"),
    ("zero2", 6, "uneven_fp32_gb6", "--param-gather overlap --algorithm doubling --progress thread"),
])
def test_parameters_gathered_under_forward(scenario: str, ranks: int, name: str, options: str) -> None:
    """The check compares masters after the last update, and each step's loss shows that its update was gathered."""
    trace = train(scenario, ranks, name, f"{options} -c", warmup=1)
    assert trace.attributes["check"] == "passed"
    assert_agrees(trace, name)


@pytest.mark.parametrize("scenario", ["zero1", "zero2"])
def test_when_parameters_are_gathered_changes_no_digit(scenario: str) -> None:
    options = [*SEVERAL_BUCKETS, "--bucket-mb", "1"]
    assert_identical_training(runs.trace(scenario, 3, *options), runs.trace(scenario, 3, *options, "--param-gather", "overlap"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_recomputation_changes_no_digit(scenario: str) -> None:
    trace = train(scenario, 2, "tiny_fp32_gb4", "--recompute full")
    assert_agrees(trace, "tiny_fp32_gb4")
    assert_identical_training(trace, train(scenario, 2, "tiny_fp32_gb4"))
    assert trace.peaks(0)["activations"] < train(scenario, 2, "tiny_fp32_gb4").peaks(0)["activations"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_recomputation_of_a_tied_model_in_bf16(scenario: str) -> None:
    options = ["--tied", "--recompute", "full", "--vocab", "101", "-w", "0", "-n", "3", "--threads", "1", "-c"]
    assert runs.trace(scenario, 3, *options).attributes["check"] == "passed"


@pytest.mark.parametrize(("ranks", "name", "options"), [
    (4, "tiny_fp32_gb4", "--algorithm direct --progress none"),
    (2, "tiny_fp32_gb4", "--algorithm ring --progress poll --bucket-mb 1"),
    (4, "tiny_fp32_gb4", "--algorithm doubling --progress thread"),
    (2, "tiny_fp32_gb4", "--algorithm native --progress none"),
    (4, "tiny_fp32_gb4", "--algorithm native --progress thread"),
    (3, "uneven_fp32_gb6", "--algorithm ring --progress thread"),
    (6, "uneven_fp32_gb6", "--algorithm doubling --progress none --bucket-mb 1"),
    (3, "uneven_fp32_gb6", "--algorithm native --progress poll"),
])
def test_ddp_schedules(ranks: int, name: str, options: str) -> None:
    assert_agrees(train("ddp", ranks, name, options, warmup=0), name)


@pytest.mark.parametrize(("ranks", "options"), [
    (1, "--micro-batch 2"),  # A = 2
    (1, "--micro-batch 4"),  # A = 1
    (2, "--micro-batch 1"),  # A = 2
    (2, "--micro-batch 2"),  # A = 1
])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_micro_batches(scenario: str, ranks: int, options: str) -> None:
    assert_agrees(train(scenario, ranks, "tiny_fp32_gb4", options), "tiny_fp32_gb4")


@pytest.mark.parametrize(("ranks", "options"), [
    (1, "--fp32-grad-accum"),
    (2, "--fp32-grad-accum"),
    (2, "--fp32-grad-accum --reduce-dtype bf16"),
    (4, "--reduce-dtype bf16"),
    (2, "--reduce-dtype bf16 --algorithm ring"),
    (4, "--reduce-dtype bf16 --algorithm doubling"),
    (4, "--reduce-dtype bf16 --algorithm native"),
])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_mixed_precision(scenario: str, ranks: int, options: str) -> None:
    trace = train(scenario, ranks, "tiny_bf16_gb4", f"{options} -c")
    assert trace.attributes["check"] == "passed"
    assert_agrees(trace, "tiny_bf16_gb4")


def test_bf16_reduction_of_fp32_parameters() -> None:
    trace = train("zero3", 4, "tiny_fp32_gb4", "--reduce-dtype bf16 -c")
    assert trace.attributes["check"] == "passed"
    assert_agrees(trace, "tiny_fp32_gb4", BF16)


SHORT = ["--seq", "8", "--param-dtype", "fp32", "--global-batch", "105", "-w", "1", "-n", "2", "--trace", "steps",
         "--threads", "1"]


@pytest.mark.parametrize("ranks", [3, 5, 7])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_odd_worlds_agree_with_one_rank(scenario: str, ranks: int) -> None:
    alone = runs.trace("ddp", 1, *SHORT)
    trace = runs.trace(scenario, ranks, *SHORT)
    assert trace.config["options"]["grad-accum"] == 105 // ranks
    assert_same_training(trace, alone)
