"""Errors that end a command, and what they suggest."""

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(Exception):
    """Input that cannot be worked on: problem, reason, what to do, in one line. Exit code 2."""


class RunError(Exception):
    """What went wrong while running: problem, reason, what to do, in one line. Exit code 1."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest known word; empty where none is near."""
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
