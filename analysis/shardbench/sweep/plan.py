"""What the executables say about a point before it runs: whether they accept it, and what it needs."""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardbench.errors import UsageError
from shardbench.plans import ANY_FLOPS, NoSchedule, ask
from shardbench.sweep.point import Point, Value

SIMULATED_DEFAULTS: Mapping[str, Value] = {"compute": "timed", "payload": "phantom", "flops": ANY_FLOPS}
"""What a simulation assumes. How fast compute is changes nothing in a plan, but has to be said."""

ROW_BYTES = {
    **{"events": 136, "memory": 48, "steps": 120, "ledger": 88, "memory_peak": 32, "ranks": 476},
    **{"clock": 32, "tensors": 64, "calibration": 48},
}
"""Sizes of the tables' rows (src/trace/SCHEMA.md, with alignment)."""

CHUNK_ROWS = 1024
"""Tables grow by so many rows (SCHEMA.md)."""

RESERVE_BYTES = 2 << 20
"""What the writer keeps free in a file for its next flush (src/trace/trace_file.cpp)."""

MEMORY_ROWS_PER_EVENT = 3
"""Measured: 1.9 (mesh2d, tp 2) to 4.0 (ddp); a plan does not list changes of memory."""

PEAK_CATEGORIES = 11
"""Rows of `memory_peak` a rank."""


@dataclass(frozen=True)
class Plan:
    """A point on paper. Events and ledger rows are rank 0's, of one step."""

    psi: int
    options: Mapping[str, Any]
    peak_bytes: int
    events: int
    ledger_rows: int

    def trace_bytes(self, ranks: int) -> int:
        """The size of the file, estimated: rows times their size, in whole chunks."""
        trace, steps = self.options["trace"], ranks * self.steps
        rows = dict.fromkeys(ROW_BYTES, 1)
        rows |= {"steps": steps, "ranks": ranks}
        if trace != "none":
            rows |= {"ledger": ranks * self.ledger_rows, "memory_peak": ranks * PEAK_CATEGORIES}
            rows |= {"clock": 2 * ranks}
        if trace == "events":
            rows |= {"events": steps * self.events, "memory": steps * self.events * MEMORY_ROWS_PER_EVENT}
        chunks = {table: -(-count // CHUNK_ROWS) for table, count in rows.items()}
        return RESERVE_BYTES + sum(CHUNK_ROWS * ROW_BYTES[table] * count for table, count in chunks.items())

    @property
    def steps(self) -> int:
        """Optimizer steps, warm-up included."""
        return int(self.options["steps"] + self.options["warmup"])

    @property
    def sequences(self) -> int:
        """The global batch of a step."""
        return int(self.options["micro-batch"] * self.options["grad-accum"] * self.options["dp"])


def plan_all(points: Iterable[Point], binaries: Path) -> dict[str, Plan]:
    """The plans of points by hash.

    Raises:
        UsageError: an executable is missing, or refuses a point.
    """
    distinct = list(points)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        plans = pool.map(lambda point: plan(point, binaries), distinct)
        return {point.hash: made for point, made in zip(distinct, plans, strict=True)}


def plan(point: Point, binaries: Path) -> Plan:
    """Asks the point's executable, with `--plan`; see `plan_all`."""
    # An executable of the release build plans what the simulated one would run.
    arguments = [f"--ranks={point.ranks}", *point.arguments(), *_assumed(point)]
    try:
        answer = ask(point.scenario, arguments, binaries)
    except NoSchedule as refusal:
        raise UsageError(f"{point.name} is refused: {refusal.reason}") from refusal
    return Plan(
        psi=answer["psi"],
        options=answer["options"],
        peak_bytes=answer["memory"]["peak_bytes"]["total_tracked"],
        events=len(answer["events"]),
        ledger_rows=len(answer["ledger"]),
    )


def _assumed(point: Point) -> list[str]:
    """The options that a simulation adds to the study's."""
    if point.machine is None or point.options.get("compute") == "real":
        return []
    said = {*point.options, *(["flops"] if "calibration" in point.options else [])}
    return [f"--{name}={value}" for name, value in SIMULATED_DEFAULTS.items() if name not in said]
