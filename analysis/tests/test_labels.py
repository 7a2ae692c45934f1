"""Reports and predictions call a configuration by one name."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardbench.predict.directory import read_for_fits
from shardbench.predict.model import configurations
from shardbench.summary.directory import read_directory
from shardbench.summary.setups import labels
from synthetic import synthetic

DIMENSIONS = {"heads": 2, "kv_heads": 2, "ffn": 16, "vocab": 32, "tied": False}


@pytest.fixture
def binaries(tmp_path: Path) -> Path:
    """Executables whose defaults are prefetch 1,1 and buckets of 25 MiB."""
    options = {"prefetch": "1,1", "bucket-mb": 25}
    defaults = json.dumps({"psi": 1, "options": options, "events": [], "ledger": [], "memory": {}})
    for scenario in ("ddp", "zero3"):
        (tmp_path / scenario).write_text(f"#!/bin/sh\necho '{defaults}'\n")
        (tmp_path / scenario).chmod(0o755)
    return tmp_path


def write(folder: Path, runs: list[tuple[str, dict[str, Any]]]) -> Path:
    folder.mkdir()
    for launch, (scenario, facts) in enumerate(runs):
        options = {"bucket-mb": 25, **facts}
        run = synthetic(scenario, options=options, launch=launch, simulated=int("platform" in facts))
        run.config["model"] |= DIMENSIONS
        if "platform" in facts:
            machine = {"name": facts["platform"], "node": {"gpus": 1}}
            run.config["simulation"] = {"platform": facts["platform"], "changed": {}, "machine": machine}
        run.write(folder / f"{launch}.h5")
    return folder


def predicted(folder: Path, binaries: Path) -> list[str]:
    return [configuration.label for configuration in configurations(read_for_fits(folder).files, binaries)]


def test_report_and_prediction_agree(binaries: Path, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "runs",
        [
            ("zero3", {"prefetch": "0,0"}),
            ("zero3", {"prefetch": "1,1"}),
            ("zero3", {"prefetch": "2,1", "fp32-grad-accum": True}),
            ("ddp", {"bucket-mb": 5}),
            ("ddp", {}),
        ],
    )
    (study,) = read_directory(folder).studies
    reported = [series.label for series in study.series]
    assert "zero3 (prefetch 0)" in reported and "ddp (bucket-mb 5)" in reported
    assert sorted(predicted(folder, binaries)) == sorted(reported)


def test_what_a_report_says_in_headings_comes_last(binaries: Path, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "runs",
        [
            ("zero3", {"prefetch": "0,0"}),
            ("zero3", {"prefetch": "1,1"}),
            ("zero3", {"prefetch": "0,0", "model": "8b", "platform": "flat"}),
        ],
    )
    assert sorted(predicted(folder, binaries)) == [
        "zero3 (prefetch 0), tiny, measured",
        "zero3 (prefetch 1), tiny, measured",
        "zero3, 8b, simulated",
    ]


def test_what_is_not_set_is_said_only_where_nothing_else_differs() -> None:
    assert labels([("zero1", {"clip": None}), ("zero1", {"clip": 1.0})]) == ["zero1", "zero1 (clip 1.0)"]
    unset = [("zero1", {"flops": None}), ("zero1", {"flops": ""}), ("zero3", {"flops": ""})]
    assert labels(unset) == ["zero1 (flops null)", 'zero1 (flops "")', "zero3"]
