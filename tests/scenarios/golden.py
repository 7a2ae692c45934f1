"""Training results and what they must agree with.

tests/golden/*.json: losses, gradient norms (global L2 of the mean gradient, before clipping) and the final masters' sum
and sum of squares per tensor, from an independent PyTorch program (CPU, fp32 arithmetic; `bf16`: parameters rounded to
bf16 for forward and backward, gradients fp32). Agreement asked, relative:
    fp32: losses 1e-5 at every step, grad_norm 1e-4, each tensor's final sum of squares 1e-5;
    bf16: losses 1e-3, grad_norm 2e-2, sum of squares 1e-3.
Two correct fp32 programs differ by less than 1e-6.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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


def assert_same_training(trace: runs.Trace, other: runs.Trace, tolerance: Tolerance = FP32) -> None:
    """Two runs of one model on the same data."""
    assert trace.attributes["psi"] == other.attributes["psi"]
    np.testing.assert_allclose(trace.steps_agreed("loss"), other.steps_agreed("loss"), rtol=tolerance.loss)
    np.testing.assert_allclose(trace.steps_agreed("grad_norm"), other.steps_agreed("grad_norm"), rtol=tolerance.grad_norm)
    for field in ("index", "name", "elements"):
        assert trace["tensors"][field].tolist() == other["tensors"][field].tolist()
    np.testing.assert_allclose(trace["tensors"]["sum_of_squares"], other["tensors"]["sum_of_squares"],
                               rtol=tolerance.sum_of_squares)
    bound = np.sqrt(other["tensors"]["elements"] * other["tensors"]["sum_of_squares"])
    np.testing.assert_array_less(np.abs(trace["tensors"]["sum"] - other["tensors"]["sum"]), tolerance.sum_of_squares * bound)


def assert_identical_training(trace: runs.Trace, other: runs.Trace) -> None:
    """To the last digit: the same arithmetic in the same order."""
    for field in ("loss", "grad_norm"):
        np.testing.assert_array_equal(trace.steps_agreed(field), other.steps_agreed(field))
    for field in ("sum", "sum_of_squares"):
        np.testing.assert_array_equal(trace["tensors"][field], other["tensors"][field])


def assert_describes_the_mesh(trace: runs.Trace, dp: int, tp: int) -> None:
    """rank = dp_index * tp + tp_index; the ranks of one tp group train the same tokens, which count once."""
    assert trace.attributes["status"] == "complete"
    assert (trace.attributes["dp"], trace.attributes["tp"]) == (dp, tp)
    ranks = np.sort(trace["ranks"], order="rank")
    assert ranks["dp_index"].tolist() == [rank // tp for rank in range(dp * tp)]
    assert ranks["tp_index"].tolist() == [rank % tp for rank in range(dp * tp)]
    options = trace.config["options"]
    per_step = options["micro-batch"] * options["grad-accum"] * trace.config["model"]["seq"]
    for rank in range(dp * tp):
        assert set(trace.of_rank("steps", rank)["tokens"].tolist()) == {0 if rank % tp else per_step}


def assert_covers_every_pair(rows: Sequence[tuple], values: Sequence[Sequence]) -> None:
    """Every pair of values of any two columns occurs."""
    assert all(len(row) == len(values) for row in rows)
    for i, j in itertools.combinations(range(len(values)), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(values[i], values[j])), (i, j)
