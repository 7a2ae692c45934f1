"""Reads a directory for fits: one file at a time, reduced at once."""

from dataclasses import dataclass, field
from pathlib import Path

from shardbench.errors import UsageError
from shardbench.predict.model import Measured, measure
from shardbench.predict.samples import BENCHMARK
from shardbench.read import Trace, TraceError, read_trace
from shardbench.summary import unusable

OVERSUBSCRIBED = "oversubscribed: ranks took turns on the CPUs, which says nothing about N"


@dataclass
class Found:
    """The usable files, and which others there are, with the reason."""

    files: list[Measured] = field(default_factory=list)
    excluded: list[tuple[str, str]] = field(default_factory=list)

    def reasons(self) -> list[str]:
        """A line for each file that was left out."""
        return [f"left out {name}: {reason}" for name, reason in self.excluded]


def read_for_fits(directory: Path) -> Found:
    """
    Raises:
        UsageError: no directory, or no file in it that can be used.
    """
    if not directory.is_dir():
        kind = "is not a folder" if directory.exists() else "does not exist"
        raise UsageError(f"{directory} {kind}; pass the folder that holds the .h5 files")
    found = Found()
    for path in sorted(p for p in directory.rglob("*.h5") if p.is_file()):
        name = str(path.relative_to(directory))
        try:
            trace = read_trace(path)
        except TraceError as error:
            found.excluded.append((name, "; ".join(error.problems)))
            continue
        if reason := _unusable(trace):
            found.excluded.append((name, reason))
        else:
            found.files.append(measure(trace, name))
    if not found.files:
        listed = "; ".join(found.reasons()) or "there is no *.h5"
        raise UsageError(f"nothing to fit below {directory}: {listed}; run scenarios with --trace events")
    return found


def _unusable(trace: Trace) -> str | None:
    if trace.attributes.oversubscribed:
        return OVERSUBSCRIBED
    return trace.incomplete if trace.attributes.scenario == BENCHMARK else unusable(trace)
