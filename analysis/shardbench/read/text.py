"""Text as it lies in a file, and what is said of files that cannot be read."""

from typing import Any

import numpy as np

DAMAGED = "so the file is damaged; copy it again or repeat the run"


def raw(text: str) -> bytes:
    """The bytes in the file, also those that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    return raw(text).decode("utf-8", "replace")


def text_of(value: Any) -> str:
    """Text of a fixed or variable-length string, without the null padding.

    Raises:
        ValueError: the bytes are not UTF-8.
        TypeError: the value is not text.
    """
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.rstrip(b"\0").decode("utf-8")
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of text")
    return str(value)


def unreadable(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    if "unable to lock file" in reason:
        return "is being written by another process, which has locked it; wait for that to end"
    return f"cannot be read, truncated or damaged? ({reason}); copy it again or repeat the run"
