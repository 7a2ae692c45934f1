"""Reads a directory for fits: one file at a time, reduced at once."""

from dataclasses import dataclass, field
from pathlib import Path

from shardbench.errors import UsageError
from shardbench.predict.model import Measured, measure
from shardbench.summary.usable import Excluded, usable_traces
from shardbench.units import listed


@dataclass
class Found:
    """The usable files, and which others there are, with the reason."""

    files: list[Measured] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)

    def reasons(self) -> list[str]:
        """A line for each reason, with the files that were left out for it."""
        names: dict[str, list[str]] = {}
        for file in self.excluded:
            names.setdefault(file.reason, []).append(file.name)
        return [f"left out {listed(files)}: {reason}" for reason, files in names.items()]


def read_for_fits(directory: Path) -> Found:
    """
    Raises:
        UsageError: no directory, or no file in it that can be used.
    """
    found = Found()
    for name, trace in usable_traces(directory, found.excluded, for_fits=True):
        found.files.append(measure(trace, name))
    if not found.files:
        reasons = "; ".join(found.reasons())
        raise UsageError(f"nothing to fit below {directory}: {reasons}; run scenarios with --trace events")
    return found
