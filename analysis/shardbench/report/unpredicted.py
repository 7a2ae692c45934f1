"""Why configurations are not predicted, in short lines; `shardbench predict` says it in full."""

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence

from shardbench.units import plural

LONGEST = 180
"""Characters of a line, which fits into 200 behind the command's name."""

MORE = "shardbench predict says more"
MOST_NAMES = 3

NODE = re.compile(r"(?<=one node of )(\d+) ranks?")
SIZE = re.compile(r" at N = (\d+)$")
ORIGIN = re.compile(r", (measured|simulated)$")


def nothing_predicted(reason: str) -> str:
    """The line where there is one reason for all; it may name every file."""
    line = f"not predicted: {reason}"
    return line if len(line) <= LONGEST else textwrap.shorten(line, LONGEST, placeholder=f" …; {MORE}")


def unpredicted(refusals: Iterable[str]) -> list[str]:
    """A line for each reason, whatever a node's number of ranks. `refusals`: 'label; label: reason', as of `outlooks_of`."""
    alike: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for refusal in refusals:
        labels, _, reason = refusal.partition(": ")
        alike[NODE.sub("", reason)].append((labels, reason))
    return [
        _line([label for labels, _ in members for label in labels.split("; ")], [r for _, r in members])
        for members in alike.values()
    ]


def _line(labels: Sequence[str], reasons: Sequence[str]) -> str:
    """Of a reason that is too long the last clauses are missing, never the first one."""
    begin, reason = f"not predicted: {_who(labels)}: ", _joined(reasons)
    clauses = reason.split("; ")
    if len(begin + reason) <= LONGEST or len(clauses) == 1:
        return begin + reason
    del clauses[-1]
    while len(clauses) > 1 and len(begin + "; ".join([*clauses, MORE])) > LONGEST:
        clauses.pop()
    return begin + "; ".join([*clauses, MORE])


def _joined(reasons: Sequence[str]) -> str:
    """Reasons that differ in a node's number of ranks, as one."""
    found = sorted({int(ranks) for reason in reasons for ranks in NODE.findall(reason)})
    if not found:
        return reasons[0]
    return NODE.sub(" or ".join([*map(str, found[:-1]), plural(found[-1], "rank")]), reasons[0])


def _who(labels: Sequence[str]) -> str:
    """The configurations by name, each with the N that it is about; from four on how many, and of what origin."""
    sizes: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        sizes[SIZE.sub("", label)] += SIZE.findall(label)
    if len(sizes) <= MOST_NAMES:
        return "; ".join(f"{name} at N = {', '.join(ns)}" if ns else name for name, ns in sizes.items())
    origins = {origin[1] if (origin := ORIGIN.search(name)) else "" for name in sizes}
    kind = f"{origins.pop()} configuration" if len(origins) == 1 else "configuration"
    return plural(len(sizes), kind.strip()) + (" at some N" if any(sizes.values()) else "")
