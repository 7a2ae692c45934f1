"""Shared by the scenario tests: one scratch folder, removed when they are done."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import runs  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _scratch() -> Iterator[None]:
    yield
    runs.remove_scratch_folder()
