"""`ledger --peak` is what a run's tracker sees, for every scenario.

The ledger walks a step with the sizes of docs/memory.md and nothing of the training code; they agree to the byte but for a rounding.
"""

import json
import random

import pytest
import runs

ALLOWED = 1e-6  # the staging of an all-reduce whose blocks differ by an element
STAGE = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "mesh2d": 3}


def peak_row(rows: list[tuple]) -> tuple[float, float]:
    ((_, _, expected, measured, _, _),) = [r for r in rows if r[1] == "textbook_peak_bytes"]
    return expected, measured


def ledger_peak(scenario: str, dp: int, options: list[str]) -> int:
    """What the `ledger` command says of the same options."""
    command = [str(runs.BIN / "ledger"), "--n", str(dp), "--stage", str(STAGE[scenario]), "--peak", "--format", "json",
               "--threads", "1", *options]
    finished = runs.execute(command, runs.scratch_folder())
    assert finished.code == 0, str(finished)
    (row,) = json.loads(finished.stdout)
    phases = {name: phase["total_bytes"] for name, phase in row["phases"].items()}
    assert row["peak_bytes"] == max(phases.values()) == phases[row["peak_phase"]]
    for phase in row["phases"].values():
        assert phase["total_bytes"] == sum(v for k, v in phase.items() if k != "total_bytes")
    return row["peak_bytes"]


def check_run(scenario: str, model: list[str], recompute: str) -> None:
    mesh = ["--tp", "2"] if scenario == "mesh2d" else []
    options = [*model, "--recompute", recompute]
    trace = runs.trace(scenario, 2, *options, *mesh, "-n", "1", "-w", "0", "--trace", "steps", "--threads", "1",
                       timeout_s=300.0)
    measured = [trace.peaks(rank)["total_tracked"] for rank in range(2)]
    for rank in range(2):
        expected, beside = peak_row([(*key, *values) for key, values in trace.ledger(rank).items()])
        assert beside == measured[rank]
        assert expected == pytest.approx(measured[rank], rel=ALLOWED)
    dp = 1 if scenario == "mesh2d" else 2
    assert ledger_peak(scenario, dp, [*options, *mesh]) == pytest.approx(max(measured), rel=ALLOWED)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("scenario", sorted(STAGE))
def test_runs_of_25m(scenario: str, recompute: str) -> None:
    check_run(scenario, ["--model", "25m", "--seq", "64"], recompute)


def random_options(choose: random.Random, scenario: str) -> tuple[int, list[str]]:
    ranks = choose.choice([1, 2, 3, 4, 8, 16, 64])
    model = choose.choice(["25m", "124m"])

    def of(option: str, *values: str) -> list[str]:
        return [option, choose.choice(values)]

    words = ["--model", model, *of("--seq", "64", "128", "256"), *of("--recompute", "none", "full"),
             *of("--param-dtype", "bf16", "fp32"), *of("--reduce-dtype", "bf16", "fp32"), *of("--micro-batch", "1", "3")]
    if STAGE[scenario] < 3:
        words += of("--bucket-mb", "1", "25", "100")
    else:
        words += [*of("--layout", "flat", "per-parameter"), *of("--prefetch", "0", "1", "2,1", "3"),
                  *of("--reshard-after-forward", "all", "blocks", "none"), *(of("--wrap", "blocks", "root") if model == "25m" else [])]
    words += choose.choice([
        of("--algorithm", "auto", "direct", "ring", "doubling"),
        ["--algorithm", "hierarchical", *of("--ranks-per-node", *(r for r in "1248" if ranks % int(r) == 0))],
    ])
    if scenario != "ddp":
        words += of("--rs-wait", "next", "end")
    if scenario == "mesh2d":
        words += ["--tp", str(choose.choice([t for t in (1, 2, 4) if ranks % t == 0])),
                  *choose.choice([[], ["--sequence-parallel"]])]
    return ranks, words


@pytest.mark.parametrize("scenario", sorted(STAGE))
def test_plans_of_random_options(scenario: str) -> None:
    choose = random.Random(scenario)
    for _ in range(20):
        ranks, options = random_options(choose, scenario)
        rank = choose.randrange(ranks)
        plan = runs.plan(scenario, ranks, rank, *options, "--threads", "1")
        rows = [(r["axis"], r["quantity"], r["expected"], r["planned"], r["padding"], r["unit"]) for r in plan["ledger"]]
        expected, planned = peak_row(rows)
        assert planned == plan["memory"]["peak_bytes"]["total_tracked"]
        assert expected == pytest.approx(planned, rel=ALLOWED), (scenario, ranks, rank, options)
