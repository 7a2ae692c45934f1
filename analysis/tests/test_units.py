import pytest

from shardbench import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12.3456, "12.35"), (0.00012346, "0.0001235"), (1234567.8, "1,234,568"), (100, "100.0")],
)
def test_number(value: float, text: str) -> None:
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.000 kB"), (14e9, "14.00 GB"), (26.25e9, "26.25 GB")],
)
def test_bytes_are_decimal(count: float, text: str) -> None:
    assert units.bytes_text(count) == text


def test_exact_keeps_every_digit() -> None:
    assert units.exact(9007199254740993.0) == "9,007,199,254,740,992"
    assert units.exact(1 / 3) == repr(1 / 3)


def test_plural() -> None:
    assert [units.plural(n, "launch") for n in (1, 2)] == ["1 launch", "2 launches"]
    assert units.plural(1200, "run") == "1,200 runs"
