"""`shardbench fit`: alpha and beta of each collective."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from shardbench.predict.alphabeta import Coefficient, Fit, Growth, Line
from shardbench.predict.directory import read_for_fits
from shardbench.predict.model import Place, fit_places
from shardbench.units import bytes_text, number, percent, text_table

HEADINGS = (
    "collective",
    "algorithm",
    "dtype",
    "group",
    "ranks",
    "sizes",
    "alpha µs",
    "1/beta GB/s",
    "base µs",
    "rounds",
    "R²",
    "worst miss",
    "samples",
)
NUMERIC = ("alpha µs", "1/beta GB/s", "base µs", "R²", "worst miss", "samples")
MICROSECONDS = 1e6


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    found = read_for_fits(options.directory)
    for line in found.reasons():
        print(line, file=sys.stderr)
    fits = fit_places(found.files)
    if options.format == "json":
        entries = [
            entry for place, kinds in fits.items() for fit in kinds.values() for entry in _entries(place, fit)
        ]
        print(json.dumps(entries, indent=1, allow_nan=False))
        return 0
    for place, kinds in fits.items():
        print(f"{place.name}\n")
        rows = [_row(line) for fit in kinds.values() for line in fit.lines]
        print(
            text_table([HEADINGS, *rows], NUMERIC) if rows else "no collectives of more than one rank",
            end="\n\n",
        )
    return 0


def _row(line: Line) -> tuple[str, ...]:
    return (
        line.kind.collective,
        line.kind.algorithm,
        line.kind.dtype,
        line.kind.where,
        ",".join(map(str, line.groups)),
        f"{bytes_text(line.smallest)} – {bytes_text(line.largest)}",
        _scaled(line.coefficient("alpha"), MICROSECONDS),
        _bandwidth(line.coefficient("beta")),
        _scaled(line.coefficient("base"), MICROSECONDS) if "base" in line.terms else "-",
        _growth(line),
        f"{line.r_squared:.4f}",
        percent(line.worst_residual),
        str(line.samples),
    )


def _growth(line: Line) -> str:
    """What alpha is counted in; PAT's second part with its time."""
    if line.counted is not Growth.PAT:
        return str(line.counted.value)
    return f"n-1, and {_scaled(line.coefficient('steps'), MICROSECONDS)} µs × log2 m"


def _scaled(found: Coefficient | None, scale: float) -> str:
    if found is None:
        return "not identifiable"
    return f"{number(found.value * scale)} [{number(found.low * scale, 3)}, {number(found.high * scale, 3)}]"


def _bandwidth(found: Coefficient | None) -> str:
    if found is None or found.value == 0:
        return "not identifiable"
    top = number(1e-9 / found.low, 3) if found.low > 0 else "∞"
    return f"{number(1e-9 / found.value)} [{number(1e-9 / found.high, 3)}, {top}]"


def _entries(place: Place, fit: Fit) -> Iterator[dict[str, Any]]:
    """Seconds and bytes."""
    for line in fit.lines:
        kind = line.kind
        yield {
            "place": place.name,
            "collective": kind.collective,
            "algorithm": kind.algorithm,
            "dtype": kind.dtype,
            "axis": kind.axis,
            "stride": kind.stride,
            "spans_nodes": kind.spans_nodes,
            "group_sizes": list(line.groups),
            "smallest_bytes": line.smallest,
            "largest_bytes": line.largest,
            "rounds": line.counted.value,
            **{f"{name}_s": _interval(line.coefficient(name)) for name in ("base", "alpha", "steps")},
            "beta_s_per_byte": _interval(line.coefficient("beta")),
            "r_squared": line.r_squared,
            "worst_relative_residual": line.worst_residual,
            "samples": line.samples,
        }


def _interval(found: Coefficient | None) -> dict[str, float] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}
