"""Errors that end a command, and what they suggest."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class UsageError(Exception):
    """Input that cannot be worked on: problem, reason, what to do, in one line. Exit code 2."""


class RunError(Exception):
    """What went wrong while running: problem, reason, what to do, in one line. Exit code 1."""


def refuse_other_than_file(path: Path) -> None:
    """
    Raises:
        UsageError: it is not there, or a folder, or for example a pipe, which would be waited for.
    """
    if not path.is_file():
        exists = "is a folder" if path.is_dir() else "is no regular file"
        kind = exists if path.exists() else "does not exist"
        raise UsageError(f"{path} {kind}; pass the path of a trace file")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest known word; empty where none is near."""
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
