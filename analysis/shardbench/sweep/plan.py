"""What the executables say about a point before it runs: whether they accept it, and what it needs."""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardbench.errors import UsageError
from shardbench.plans import ANY_FLOPS, SIMULATED_COMMUNICATION, NoSchedule, ask
from shardbench.sweep.point import Point, Value

SIMULATED_COMPUTE: Mapping[str, Value] = {"compute": "timed", "payload": "phantom", "flops": ANY_FLOPS}
"""What a simulation assumes. How fast compute is changes nothing in a plan, but has to be said."""

ONLY_SIMULATED = {"algorithm": ("nccl", "coarse"), "progress": ("stream",)}
"""What plans allow and real ranks refuse (`check_supported`)."""

ROW_BYTES = {
    **{"events": 136, "memory": 48, "steps": 120, "ledger": 88, "memory_peak": 32, "ranks": 476},
    **{"clock": 32, "tensors": 64, "calibration": 48, "collectives": 120},
}
"""Sizes of the tables' rows (src/trace/SCHEMA.md, with alignment)."""

IN_EVERY_FILE = ROW_BYTES.keys() - {"collectives"}

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
    """A point on paper.

    `rows` are those of each table that grows, of one rank over the whole run. `operations` of one rank and the whole run,
    and `work` of all ranks (a number without unit) say how long a simulation and real ranks take, compared with others.
    """

    psi: int
    options: Mapping[str, Any]
    peak_bytes: int
    rows: Mapping[str, int]
    operations: int
    work: float

    def trace_bytes(self, ranks: int) -> int:
        """The size of the file, estimated: rows times their size, in whole chunks."""
        rows = dict.fromkeys(IN_EVERY_FILE, 1) | {table: ranks * count for table, count in self.rows.items()}
        chunks = {table: -(-count // CHUNK_ROWS) for table, count in rows.items()}
        return RESERVE_BYTES + sum(CHUNK_ROWS * ROW_BYTES[table] * count for table, count in chunks.items())


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
    if point.machine is None:
        _refuse_simulated(point, answer["options"])
    return of_benchmark(answer) if point.is_benchmark else of_step(answer)


def _refuse_simulated(point: Point, options: Mapping[str, Any]) -> None:
    for name, values in ONLY_SIMULATED.items():
        if (value := options.get(name)) in values:
            raise UsageError(
                f"{point.name} is refused: --{name} {value} exists only in simulation; use another, "
                'or launcher = "simulate"'
            )


def of_step(answer: Mapping[str, Any]) -> Plan:
    """A scenario's."""
    options, events = answer["options"], len(answer["events"])
    steps = int(options["steps"] + options["warmup"])
    rows = {"steps": steps, "ranks": 1}
    if options["trace"] != "none":
        rows |= {"ledger": len(answer["ledger"]), "memory_peak": PEAK_CATEGORIES, "clock": 2}
    if options["trace"] == "events":
        rows |= {"events": steps * events, "memory": steps * events * MEMORY_ROWS_PER_EVENT}
    sequences = int(options["micro-batch"] * options["grad-accum"] * options["dp"])
    return _plan(answer, rows, operations=steps * events, work=float(steps * sequences * answer["psi"]))


def of_benchmark(answer: Mapping[str, Any]) -> Plan:
    """That of the program `collectives`."""
    lines, repetitions = answer["lines"], int(answer["repetitions"])
    operations = len(lines) * repetitions
    moved = sum(line["size_bytes"] for line in lines) * repetitions
    return _plan(answer, {"collectives": operations, "ranks": 1, "clock": 2}, operations, float(moved))


def _plan(answer: Mapping[str, Any], rows: Mapping[str, int], operations: int, work: float) -> Plan:
    peak = int(answer["memory"]["peak_bytes"]["total_tracked"])
    return Plan(answer["psi"], answer["options"], peak, rows, operations, work)


def _assumed(point: Point) -> list[str]:
    """The options that a simulation adds to the study's."""
    if point.machine is None:
        return []
    assumed: dict[str, Value] = dict(SIMULATED_COMMUNICATION)
    if point.is_benchmark:
        assumed["check"] = 0
    elif point.options.get("compute") != "real":
        assumed |= SIMULATED_COMPUTE
    said = {*point.options, *(["flops"] if "calibration" in point.options else [])}
    return [f"--{name}={value}" for name, value in assumed.items() if name not in said]
