"""The closed form that stands beside where scaling ends: to which runs it applies, and which N it gives."""

from pathlib import Path
from typing import Any

import pytest

from shardbench.ends import closed_form_end
from shardbench.platforms import load_platform
from shardbench.redline import Block, Layout, Machine, red_line, windows
from shardbench.summary.directory import read_directory
from shardbench.summary.series import Series
from synthetic import Synthetic, synthetic

FORWARD_S, BACKWARD_S = 2.43e-3, 4.73e-3
BLOCK = 218_112_000
APPLIES: dict[str, Any] = {
    **{"algorithm": "nccl", "param-dtype": "bf16", "reduce-dtype": "fp32", "layout": "per-parameter"},
    **{"reshard-after-forward": "all", "recompute": "none", "prefetch": "1,1"},
}


def run_of_8b(**options: Any) -> Synthetic:
    run = synthetic("zero3", 8, simulated=1, psi=8_030_261_248, options=APPLIES | options)
    run.config["model"] = dict(layers=32, hidden=4096, vocab=128256, seq=2048, tied=False)
    platform = load_platform("h100-fat-tree", [])
    run.config["simulation"] = {"platform": platform.name, "machine": platform.description(8)}
    run.tables["calibration"] = [
        dict(kind="block", layer=1, direction=direction, compute_alone_s=seconds, communication_alone_s=0.001)
        for direction, seconds in (("forward", FORWARD_S), ("backward", BACKWARD_S))
    ]
    return run


def series_of(folder: Path, run: Synthetic) -> Series:
    run.write(folder / "run.h5")
    (study,) = read_directory(folder).studies
    return study.series[0]


@pytest.mark.parametrize("layout", ["flat", "per-parameter"])
def test_the_red_line_of_the_runs_own_machine_and_block(tmp_path: Path, layout: str) -> None:
    machine = Machine(load_platform("h100-fat-tree", []).values)
    block = Block(BLOCK, FORWARD_S, BACKWARD_S)
    wanted = min(red_line(machine, window) for window in windows(machine, block, Layout(layout)))
    assert closed_form_end(series_of(tmp_path, run_of_8b(layout=layout))) == wanted
    assert 300 < wanted < 500


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "ring"},
        {"reduce-dtype": "bf16"},
        {"prefetch": "0,0"},
        {"recompute": "full"},
        {"communicators": 2},
    ],
)
def test_it_is_not_applied_to_other_schedules(tmp_path: Path, options: dict[str, Any]) -> None:
    assert closed_form_end(series_of(tmp_path, run_of_8b(**options))) is None


def test_it_needs_a_rehearsal_and_a_machine(tmp_path: Path) -> None:
    bare, real = run_of_8b(), run_of_8b()
    bare.tables["calibration"] = []
    real.attributes["simulated"] = 0
    assert closed_form_end(series_of(tmp_path, bare)) is None
    assert closed_form_end(series_of(tmp_path, real)) is None
