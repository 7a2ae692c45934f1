"""Comparisons of two sets of runs whose differences are known."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardbench.cli import main
from synthetic import Synthetic, synthetic

TOTAL = 20_000


def tracked(run: Synthetic, total: int = TOTAL) -> Synthetic:
    """With an exact peak, the same on every rank."""
    for rank in range(run.attributes["world_size"]):
        run.tables["memory_peak"].append(dict(rank=rank, category="total_tracked", peak_bytes=total))
    return run


def launches(step_s: Sequence[float], **facts: Any) -> list[Synthetic]:
    """One launch of three equal steps for each time."""
    return [tracked(synthetic(step_s=[t] * 3, launch=i, **facts)) for i, t in enumerate(step_s)]


def write(folder: Path, runs: Sequence[Synthetic]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, run in enumerate(runs):
        run.write(folder / f"{index}.h5")
    return folder


class Sides:
    """Two folders, and what the command says about them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def text(self, a: Sequence[Synthetic], b: Sequence[Synthetic], *options: str) -> tuple[int, str]:
        paths = [str(write(self.folder / name, runs)) for name, runs in (("a", a), ("b", b))]
        code = main(["compare", *paths, *options])
        captured = self.capsys.readouterr()
        return code, captured.out or captured.err

    def json(self, a: Sequence[Synthetic], b: Sequence[Synthetic], *options: str) -> tuple[int, Any]:
        code, text = self.text(a, b, "--format", "json", *options)

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        return code, json.loads(text, parse_constant=refuse)

    def point(self, a: Sequence[Synthetic], b: Sequence[Synthetic], *options: str) -> tuple[int, Any]:
        code, found = self.json(a, b, *options)
        (point,) = found["points"]
        return code, point


@pytest.fixture
def sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sides:
    return Sides(tmp_path, capsys)


BASE = [0.010, 0.011, 0.012, 0.013, 0.014, 0.015]


@pytest.mark.parametrize(
    ("times", "verdict", "code"),
    [
        ([0.016, 0.017, 0.018, 0.019, 0.020, 0.021], "slower", 1),
        ([0.004, 0.005, 0.006, 0.007, 0.008, 0.009], "faster", 0),
        ([0.015, 0.016, 0.017, 0.018, 0.019, 0.020], "no difference shown", 0),  # they touch
        (BASE, "no difference shown", 0),
    ],
)
def test_six_launches_are_the_samples(sides: Sides, times: list[float], verdict: str, code: int) -> None:
    found, point = sides.point(launches(BASE), launches(times))
    assert (found, point["step_s"]["verdict"], point["samples"]) == (code, verdict, "launches")
    assert point["step_s"]["a"] == {"median": 0.0125, "low": 0.010, "high": 0.015, "samples": 6}
    ratio = point["step_s"]["ratio"]
    assert ratio["low"] == pytest.approx(times[0] / 0.015, rel=1e-12)
    assert ratio["high"] == pytest.approx(times[-1] / 0.010, rel=1e-12)
    assert ratio["value"] == pytest.approx((times[2] + times[3]) / 2 / 0.0125, rel=1e-12)
    assert point["basis"] == "6 launches"
    assert point["regressions"] == (["slower"] if code else [])


@pytest.mark.parametrize(("percent", "code"), [("0", 1), ("49.9", 1), ("50.1", 0), ("60", 0)])
def test_threshold(sides: Sides, percent: str, code: int) -> None:
    found, point = sides.point(launches([0.010] * 6), launches([0.015] * 6), "--threshold", percent)
    assert (found, point["step_s"]["verdict"]) == (code, "slower")


def test_steps_of_one_launch_say_so(sides: Sides) -> None:
    a, b = ([synthetic(step_s=[t + i * 1e-4 for i in range(7)])] for t in (0.010, 0.020))
    code, point = sides.point(a, b)
    assert (code, point["step_s"]["verdict"], point["samples"]) == (1, "slower", "steps")
    assert point["basis"] == "within launch, 7 steps"
    _, text = sides.text(a, b)
    assert "hold for these launches and say nothing about the next one" in text


def test_launches_that_contradict_the_steps_of_one_count(sides: Sides) -> None:
    """The median launches differ clearly; but one launch of B was as fast as A."""
    a = [synthetic(step_s=[0.010] * 7)]
    b = [synthetic(step_s=[t] * 7, launch=i) for i, t in enumerate((0.020, 0.021, 0.010))]
    code, point = sides.point(a, b)
    assert (code, point["step_s"]["verdict"]) == (0, "no difference shown")
    assert point["step_s"]["b"]["low"] == 0.010
    assert point["basis"] == "A within launch, 7 steps; B within launch, 7 steps and 3 medians"


@pytest.mark.parametrize("count", [1, 5])
def test_below_six_samples_there_is_no_verdict(sides: Sides, count: int) -> None:
    a, b = ([synthetic(step_s=[t] * count)] for t in (0.010, 0.030))
    code, point = sides.point(a, b)
    assert (code, point["step_s"]["verdict"]) == (0, "too few samples")
    assert point["step_s"]["ratio"] == {"value": pytest.approx(3), "low": None, "high": None}
    assert f"{count} step{'s' if count > 1 else ''} < 6" in point["basis"]


@pytest.mark.parametrize(("factor", "verdict"), [(1, "same"), (1 + 1e-12, "slower"), (1 - 1e-12, "faster")])
def test_simulations_are_exact(sides: Sides, factor: float, verdict: str) -> None:
    a, b = ([synthetic(step_s=[0.010 * f] * 2, simulated=1)] for f in (1, factor))
    code, point = sides.point(a, b)
    assert (code, point["step_s"]["verdict"]) == (int(verdict == "slower"), verdict)
    assert (point["samples"], point["basis"]) == ("exact", "simulated, exact")
    _, text = sides.text(a, b)
    assert (" 1.000 " in text) == (factor == 1)


def test_no_ratio_of_nothing(sides: Sides) -> None:
    a, b = (launches(BASE) for _ in range(2))
    for run in a:
        for row in run.tables["steps"]:
            row["compute_s"] += row["exposed_s"]
            row["exposed_s"] = 0.0
    _, point = sides.point(a, b)
    assert point["exposed_s"]["ratio"] == {"value": None, "low": None, "high": None}
    assert point["exposed_s"]["verdict"] == "slower"
    assert point["regressions"] == []


@pytest.mark.parametrize(
    ("total", "verdict", "code"), [(TOTAL + 1, "more", 1), (TOTAL - 1, "less", 0), (TOTAL, "same", 0)]
)
def test_memory_needs_no_statistics(sides: Sides, total: int, verdict: str, code: int) -> None:
    found, point = sides.point([tracked(synthetic())], [tracked(synthetic(), total)], "--threshold", "50")
    assert (found, point["peak_memory_bytes"]) == (code, {"a": TOTAL, "b": total, "verdict": verdict})
    assert point["regressions"] == (["more memory"] if code else [])


def test_bounds_of_memory_are_not_compared(sides: Sides) -> None:
    code, point = sides.point([synthetic()], [tracked(synthetic(), 10 * TOTAL)])
    assert (code, point["peak_memory_bytes"]["verdict"]) == (0, "not recorded")


def test_a_wrong_ledger_is_a_regression(sides: Sides) -> None:
    wrong = synthetic()
    wrong.row("ledger", rank=1, quantity="all_gather_forward_count")["measured"] = 4
    code, text = sides.text([synthetic()], [wrong])
    assert code == 1
    assert "regressed: zero3, N = 2: ledger: rank 1, dp all_gather_forward_count: expected 3" in text
    assert sides.text([wrong], [synthetic()])[0] == 0


@pytest.mark.parametrize("others", [True, False])
def test_a_failed_run_of_b_is_a_regression(sides: Sides, others: bool) -> None:
    failed = synthetic(size=4, status="failed", check="failed", launch=1)
    code, found = sides.json([synthetic()], [synthetic(), failed] if others else [failed])
    assert (code, found["regressions"]) == (1, 1)
    assert found["failed_b"] == ["1.h5" if others else "0.h5"]


def test_a_failed_run_of_a_is_left_out_only(sides: Sides) -> None:
    failed = synthetic(size=4, status="failed", launch=1)
    code, text = sides.text([synthetic(), failed], [synthetic(), synthetic(size=4, launch=1)])
    assert code == 0
    assert "Only in B:\n  zero3, N = 4" in text
    assert "Left out of A:\n  1.h5: incomplete: status is 'failed'" in text


def simulated(**machine: Any) -> Synthetic:
    run = synthetic(simulated=1)
    run.config["simulation"] = {"platform": "flat", "changed": {}, "machine": {"ranks": 2, **machine}}
    return run


def with_threads(count: int) -> Synthetic:
    run = synthetic()
    for row in run.tables["ranks"]:
        row["threads"] = count
    return run


def on_platform(name: str, **changed: Any) -> Synthetic:
    run = simulated()
    run.config["simulation"] |= {"platform": name, "changed": changed}
    return run


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (synthetic("zero2"), synthetic("zero3")),
        (synthetic(size=2), synthetic(size=4)),
        (synthetic(options={"prefetch": 0}), synthetic(options={"prefetch": 1})),
        (synthetic(options={"check": True}), synthetic(options={"check": False})),
        (synthetic(), synthetic(simulated=1)),
        (synthetic(), synthetic(compute="timed")),
        (synthetic(options={"model": "25m"}), synthetic()),
        (with_threads(1), with_threads(2)),
        (simulated(gpu={"peak_flops": 1e12}), simulated(gpu={"peak_flops": 2e12})),
        (on_platform("flat"), on_platform("h100-fat-tree")),
        (on_platform("flat"), on_platform("flat", **{"node.gpus": 4})),
    ],
)
def test_other_configurations_are_never_paired(sides: Sides, a: Synthetic, b: Synthetic) -> None:
    code, text = sides.text([a], [b])
    assert (code, text.count("\n")) == (2, 1)
    assert "have no point in common" in text
    code, found = sides.json([a, synthetic("ddp")], [b, synthetic("ddp")])
    assert (code, len(found["points"]), len(found["only_a"]), len(found["only_b"])) == (0, 1, 1, 1)


def test_steps_warmup_and_output_do_not_matter(sides: Sides) -> None:
    b = synthetic(step_s=[0.01] * 9, warmup=3, options={"output": "elsewhere"})
    assert len(sides.json([synthetic()], [b])[1]["points"]) == 1


def test_commits_are_shown(sides: Sides) -> None:
    _, text = sides.text([synthetic()], [synthetic(git_commit="fedcba9876543210", mpi_library="MPICH 4.3")])
    assert re.search(r"^A \(base\): .*, 1 launch, commit 0123456789ab$", text, re.MULTILINE)
    assert re.search(r"^B: .*, 1 launch, commit fedcba987654$", text, re.MULTILINE)
    assert "MPI differs: A MPICH 4.0.2; B MPICH 4.3" in text


def test_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(synthetic(step_s=[t] * 6).write(tmp_path / f"{t}.h5")) for t in (0.01, 0.02)]
    assert main(["compare", *paths]) == 1
    assert "1 point compared, 1 regressed" in capsys.readouterr().out
    assert main(["compare", *paths[::-1]]) == 0
    assert "1 point compared, no regression shown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{0}/none", "{0}"], "none does not exist"),
        (["{0}", "{0}"], "no *.h5 file below"),
        (["{0}", "{0}", "--threshold", "5,0"], "5,0 is not a percentage from 0 on"),
        (["{0}", "{0}", "--threshold", "-1"], "-1 is not a percentage from 0 on"),
        (["{0}", "{0}", "--threshold", "nan"], "nan is not a percentage"),
        (["{0}", "{0}", "--format", "jsno"], "did you mean json?"),
    ],
)
def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    try:
        code = main(["compare", *(argument.format(tmp_path) for argument in arguments)])
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert told in error


def test_only_unusable_files(sides: Sides) -> None:
    code, text = sides.text([synthetic()], [synthetic(status="interrupted")])
    assert code == 2
    assert "0.h5 for one is left out: incomplete: status is 'interrupted'" in text


def test_every_field_is_documented(sides: Sides) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    _, found = sides.json([synthetic(), synthetic(size=4)], [synthetic(), synthetic(size=8)])

    def names(value: Any) -> set[str]:
        if isinstance(value, dict):
            return {name for name in value} | {
                n for k, v in value.items() if k != "options" for n in names(v)
            }
        return {name for item in value for name in names(item)} if isinstance(value, list) else set()

    assert {name for name in names(found) if f"`{name}`" not in readme} == set()
