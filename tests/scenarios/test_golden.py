"""Training agrees with an independent PyTorch program, whatever the schedule.

tests/golden/*.json: losses, gradient norms (global L2 of the mean gradient, before clipping) and the final masters' sum
and sum of squares per tensor, from an independent PyTorch program (CPU, fp32 arithmetic; `bf16`: parameters rounded to
bf16 for forward and backward, gradients fp32). Agreement asked, relative:
    fp32: losses 1e-5 at every step, grad_norm 1e-4, each tensor's final sum of squares 1e-5;
    bf16: losses 1e-3, grad_norm 2e-2, sum of squares 1e-3.
Two correct fp32 programs differ by less than 1e-6.
"""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import runs

GOLDEN = runs.ROOT / "tests/golden"


@dataclass(frozen=True)
class Tolerance:
    loss: float
    grad_norm: float
    sum_of_squares: float


FP32 = Tolerance(loss=1e-5, grad_norm=1e-4, sum_of_squares=1e-5)
BF16 = Tolerance(loss=1e-3, grad_norm=2e-2, sum_of_squares=1e-3)


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def train(scenario: str, ranks: int, name: str, options: str = "", warmup: int = 2) -> runs.Trace:
    """Runs exactly the golden file's steps; warm-up steps train like any other."""
    wanted = golden(name)
    steps = len(wanted["losses"])
    clip = ["--clip", str(wanted["clip"])] if wanted["clip"] else []
    return runs.trace(
        scenario, ranks, *runs.model_options(wanted["model"]), "--seed", str(wanted["seed"]),
        "--global-batch", str(wanted["global_batch"]), "--param-dtype", wanted["param_dtype"], *clip,
        "-w", str(warmup), "-n", str(steps - warmup), "--trace", "steps", "--threads", "1", *options.split())


def assert_agrees(trace: runs.Trace, name: str, tolerance: Tolerance | None = None) -> None:
    wanted = golden(name)
    tolerance = tolerance or (FP32 if wanted["param_dtype"] == "fp32" else BF16)
    assert trace.attributes["psi"] == wanted["psi"]
    np.testing.assert_allclose(trace.steps_agreed("loss"), wanted["losses"], rtol=tolerance.loss)
    np.testing.assert_allclose(trace.steps_agreed("grad_norm"), wanted["grad_norms"], rtol=tolerance.grad_norm)
    tensors = trace["tensors"]
    assert tensors["index"].tolist() == list(range(len(tensors)))
    assert tensors["name"].tolist() == list(wanted["final_sum_and_sum_of_squares"])
    sums = np.array(list(wanted["final_sum_and_sum_of_squares"].values()))
    np.testing.assert_allclose(tensors["sum_of_squares"], sums[:, 1], rtol=tolerance.sum_of_squares)
    # The sum may cancel, so it is measured against what it could be at most: sqrt(elements * sum of squares).
    bound = np.sqrt(tensors["elements"] * sums[:, 1])
    np.testing.assert_array_less(np.abs(tensors["sum"] - sums[:, 0]), tolerance.sum_of_squares * bound)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", ["tiny_fp32_gb4", "tiny_bf16_gb4", "tiny_fp32_gb4_clip1"])
@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
def test_tiny(scenario: str, name: str, ranks: int) -> None:
    trace = train(scenario, ranks, name)
    assert_agrees(trace, name)
    assert trace.config["options"]["grad-accum"] == 4 // ranks


@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
def test_forty_steps(scenario: str) -> None:
    # In windows of 7, so that steps after a flush are covered too.
    trace = train(scenario, 4, "tiny_fp32_gb16_40steps", "--micro-batch 2 --window 7", warmup=3)
    assert_agrees(trace, "tiny_fp32_gb16_40steps")
    flags = trace.steps_agreed("warmup")
    assert np.flatnonzero(flags).tolist() == [0, 1, 2, 10, 17, 24, 31, 38]


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
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
    for i, first in enumerate(VALUES):
        for j in range(i):
            assert {(s[i], s[j]) for s in SCHEDULES} == {(a, b) for a in first for b in VALUES[j]}


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
@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
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
@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
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
@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
def test_odd_worlds_agree_with_one_rank(scenario: str, ranks: int) -> None:
    alone = runs.trace("ddp", 1, *SHORT)
    trace = runs.trace(scenario, ranks, *SHORT)
    assert trace.config["options"]["grad-accum"] == 105 // ranks
    np.testing.assert_allclose(trace.steps_agreed("loss"), alone.steps_agreed("loss"), rtol=FP32.loss)
    np.testing.assert_allclose(trace.steps_agreed("grad_norm"), alone.steps_agreed("grad_norm"), rtol=FP32.grad_norm)
    np.testing.assert_allclose(trace["tensors"]["sum_of_squares"], alone["tensors"]["sum_of_squares"],
                               rtol=FP32.sum_of_squares)
