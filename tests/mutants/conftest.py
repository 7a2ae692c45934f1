"""Shared by these tests: the scenario tests' helpers, and one scratch folder, removed when they are done."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "scenarios")]

import runs  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _scratch() -> Iterator[None]:
    yield
    runs.remove_scratch_folder()
