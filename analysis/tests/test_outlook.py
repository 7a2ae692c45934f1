"""Which N are predicted, where an executable refuses some of them; and executables that answer otherwise."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardbench.errors import RunError, UsageError
from shardbench.plans import NoSchedule, ask
from shardbench.predict.outlook import exposed_from


class Model:
    """Exposes more from N = 40 on; plans only N that divide the batch."""

    per_node = 8
    setup = SimpleNamespace(tp=1)

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def predict(self, ranks: int) -> Any:
        if self.batch % ranks:
            raise NoSchedule("the batch does not divide")
        return SimpleNamespace(ranks=ranks, exposed_share=0.2 if ranks >= 40 else 0.05)


@pytest.mark.parametrize(
    ("batch", "sizes", "first"),
    [
        (2**8 * 3 * 5 * 7 * 11, (8, 16, 32, 64), 40),  # every N in between
        (192, (8, 16, 32, 64), 48),  # 40 and 56 are refused
        (64, (8, 16, 32, 64), 64),  # all in between are
        (192, (8, 192), 48),
        (2**8 * 3 * 5 * 7 * 11, (40, 80), 40),
        (64, (8, 16, 32), None),
    ],
)
def test_refused_sizes_are_passed_over(batch: int, sizes: tuple[int, ...], first: int | None) -> None:
    model: Any = Model(batch)
    assert exposed_from(model, [model.predict(ranks) for ranks in sizes]) == first


@pytest.mark.parametrize(
    ("program", "error", "said"),
    [
        ("echo hello", RunError, "in a form that is not known here"),
        ("echo '{}'", RunError, "in a form that is not known here"),
        ("echo '[1]'", RunError, "in a form that is not known here"),
        ("echo it does not divide >&2; exit 2", NoSchedule, "no schedule: it does not divide"),
        ("kill -9 $$", NoSchedule, "ended with exit code -9"),
    ],
)
def test_an_executable_that_answers_otherwise(
    program: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "zero3"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    with pytest.raises(error, match=said):
        ask("zero3", [], tmp_path)


def test_a_missing_executable_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="zero3 is no executable"):
        ask("zero3", [], tmp_path)
