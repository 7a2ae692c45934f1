import pytest

from synthetic import Synthetic, synthetic


@pytest.fixture
def run() -> Synthetic:
    """A valid zero3 run on two ranks, to be broken by the test."""
    return synthetic()
