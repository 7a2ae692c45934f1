"""Shared by the scenario tests: one scratch folder, removed when they are done."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import runs  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: for make test-all")


@pytest.fixture(scope="session", autouse=True)
def _scratch() -> Iterator[None]:
    yield
    runs.remove_scratch_folder()
