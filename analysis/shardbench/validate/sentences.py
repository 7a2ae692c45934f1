"""How a violation is said: the first offending row, and how many more there are."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pandas as pd

Key = TypeVar("Key", int, tuple[int, int], tuple[int, int, int])


def each_once(table: str, key: str, found: list[Key], expected: Iterable[Key]) -> Iterator[str]:
    counts, wanted = Counter(found), set(expected)
    missing = wanted - counts.keys()
    surplus = counts.keys() - wanted
    repeated = {value for value, count in counts.items() if count > 1}
    for words, keys in (("is missing", missing), ("is unexpected", surplus), ("is repeated", repeated)):
        if keys:
            yield f"{table}: {key} {min(keys)} {words}{more(len(keys))}"


def first(rows: pd.DataFrame, sentence: Callable[[dict[str, Any]], str]) -> Iterator[str]:
    """The sentence of the first offending row, and how many more there are."""
    for row in records(rows.head(1)):
        yield sentence(row) + more(len(rows))


def records(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows as dictionaries of plain Python values, which print without numpy's types."""
    return iter(rows.astype(object).to_dict("records"))


def more(count: int, noun: str = "row") -> str:
    return f" (and {count - 1} more {noun}{'s' if count > 2 else ''})" if count > 1 else ""


def unknown_words(column: pd.Series, place: str, words: tuple[str, ...]) -> Iterator[str]:
    unknown = column[~column.isin(words)]
    if not unknown.empty:
        yield f"{place} is '{unknown.iloc[0]}', must be one of {', '.join(words)}{more(len(unknown))}"
