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


@pytest.mark.parametrize(
    ("text", "count"),
    [("80GB", 80e9), ("1.5 TB", 1.5e12), ("40GiB", 40 * 2**30), ("512B", 512), ("64kB", 64e3)],
)
def test_sizes_are_read(text: str, count: float) -> None:
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["0GB", "-1GB", "1,5GB", "GB", "80iB", "80GBs", "1.2.3GB", ""])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size.*; pass for example 80GB"):
        units.parse_bytes(text)


def test_nothing_is_not_negative() -> None:
    assert units.percent(-1e-9) == "0.0 %"
    assert units.percent(-0.001) == "-0.1 %"


def test_lists_read_as_sentences() -> None:
    assert [units.listed(list("abc")[:count]) for count in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
