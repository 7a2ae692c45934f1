"""Shared by these tests: the scenario tests' helpers, one Slurm for all of them, and the reason where there can be none."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter  # not public in Debian 12's pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "scenarios")]

import cluster  # noqa: E402


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[cluster.Cluster]:
    with cluster.Cluster() as running:
        yield running


@pytest.fixture
def slurm(shared_slurm: cluster.Cluster) -> Iterator[cluster.Cluster]:
    """Idle, whatever the test before has left behind."""
    yield shared_slurm
    shared_slurm.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = cluster.reason_unavailable()
    for item in items if reason else []:
        if "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    reason = cluster.reason_unavailable()
    if reason and "skipped" in terminalreporter.stats:
        terminalreporter.write_line(f"no Slurm here: {reason}")
