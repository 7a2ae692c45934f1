"""Shared by these tests: the scenario tests' helpers, the case of each test, and one scratch folder, removed at the end."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "scenarios")]

import runs  # noqa: E402
from recorder import Record  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: for make reliability and make test-all")
    config.addinivalue_line("markers", "reliability(name): the case of tests/reliability/cases.py that the test belongs to")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.path.stem != "test_registry" and item.get_closest_marker("reliability") is None:
            raise pytest.UsageError(f"{item.nodeid} belongs to no case; mark it with @case (tests/reliability/recorder.py)")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    return Record(lambda key, value: request.node.user_properties.append((key, value)))


@pytest.fixture(scope="session", autouse=True)
def _scratch() -> Iterator[None]:
    yield
    runs.remove_scratch_folder()
