"""Shared by these tests: the scenario tests' helpers, one scratch folder, and the reason where there is no network."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter  # not public in Debian 12's pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "scenarios")]

import network  # noqa: E402
import runs  # noqa: E402

NEEDS_NETWORK = "test_link.py"


@pytest.fixture(scope="session", autouse=True)
def _scratch() -> Iterator[None]:
    yield
    runs.remove_scratch_folder()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = network.reason_unavailable(runs.MPIEXEC)
    for item in items if reason else []:
        if item.path.name == NEEDS_NETWORK:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    reason = network.reason_unavailable(runs.MPIEXEC)
    if reason and "skipped" in terminalreporter.stats:
        terminalreporter.write_line(f"no rate-limited network here: {reason}")
