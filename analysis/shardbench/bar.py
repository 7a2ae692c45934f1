"""A progress bar on standard error, where that is a terminal."""

import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


class _Bar(tqdm):  # type: ignore[type-arg] # not generic at run time
    # Its thread that watches over slow bars would be half alive in the processes that isolate.py forks.
    monitor_interval = 0


def bar(items: Iterable[T], unit: str, total: int | None = None) -> Iterable[T]:
    """The items, with a bar that says how many of `total` are done; `unit` is what one is called."""
    hidden = not sys.stderr.isatty()
    shown: Iterable[T] = _Bar(
        items, total=total, unit=f" {unit}", disable=hidden, leave=False, file=sys.stderr
    )
    return shown
