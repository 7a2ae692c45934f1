"""Which case a test belongs to, and what became of each test: outcome and seconds, one JSON object a line.

Tests of this folder name their case with `@case`. Loaded as a plugin (tests/reliability/suite.py sets PYTEST_PLUGINS), this
module appends a line for every test of any folder to the file that SHARDBENCH_RECORD names.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases
import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = "seconds_to_end"


def case(name: str) -> pytest.MarkDecorator:
    """Marks a test as one of a registered case."""
    if name not in cases.BY_NAME:
        raise ValueError(f"no case {name!r} is registered; add it to tests/reliability/cases.py")
    return pytest.mark.reliability(name)


@dataclass(frozen=True)
class Record:
    """Where a test says how long what befell the run took to end it. Otherwise the test's own duration counts."""

    note: Callable[[str, float], None]

    def seconds(self, seconds: float) -> None:
        self.note(SECONDS, seconds)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = (yield).get_result()
    path = os.environ.get("SHARDBENCH_RECORD")
    # A set-up that skips or fails has no call; a failure of the tear-down is one of the test, too.
    if path is None or (report.when != "call" and report.passed):
        return
    mark = item.get_closest_marker("reliability")
    recorded = [value for key, value in item.user_properties if key == SECONDS]
    line = {
        "test": f"{item.path.relative_to(ROOT)}::{item.name.partition('[')[0]}",
        "parameters": item.name.partition("[")[2].rstrip("]"),
        "case": mark.args[0] if mark else None,
        "outcome": report.outcome,
        "reason": report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else "",
        "seconds": max(recorded) if recorded else call.duration,
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
