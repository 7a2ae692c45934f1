"""What stands in an exported table.

`steps`, `runs` and `points` are whole by themselves: each row repeats how its run was configured and what made it. The
others can be long, so that their rows have `KEYS` only; the rest is joined from `runs` by `file`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from shardbench.errors import RunError
from shardbench.plans import BENCHMARK
from shardbench.read import ALL_TABLES, Header, Kind, TraceError, read_header
from shardbench.summary.launch import Launch, reduce_trace
from shardbench.summary.series import Point, Series
from shardbench.summary.studies import studies_of
from shardbench.summary.usable import Excluded, find_traces, name_below, usable_traces

KEYS = ("file", "scenario", "model", "world_size", "dp", "tp", "simulated")
PROVENANCE = (
    *(
        "platform",
        "platform_changed",
        "psi",
        "compute",
        "payload",
        "backend",
        "seed",
        "steady",
        "oversubscribed",
    ),
    *(
        "check",
        "launch_id",
        "created_utc",
        "git_commit",
        "git_dirty",
        "build_type",
        "mpi_library",
        "hdf5_version",
    ),
    *("nccl_version", "timer_overhead_s", "timer_resolution_s", "command_line"),
)
"""Root attributes, and of simulations the machine's name and what was set on it."""


def parts(table: str, path: Path, excluded: list[Excluded]) -> Iterator[pd.DataFrame]:
    """The table in parts, one a file; all have the same columns of the same types.

    `table` is one of a file's, `runs` (a row a file) or `points` (a row a configuration and N, in one part). What is left
    out is added to `excluded`.

    Raises:
        UsageError: there is nothing to read.
        RunError: a file has changed meanwhile.
    """
    if table == "points":
        yield _points(path, excluded)
        return
    runs = _runs(path)
    for name, trace in usable_traces(path, excluded):
        run = runs[runs["file"] == name]
        if len(run) != 1:
            raise RunError(f"{name} was written while it was read; export again when its run has ended")
        if table == "runs":
            yield run
        elif not (rows := getattr(trace, table)).empty:
            columns = run.columns if table == "steps" else list(KEYS)
            repeated = run[columns].iloc[[0] * len(rows)].reset_index(drop=True)
            texts = [name for name, kind in ALL_TABLES[table].items() if kind is Kind.LABEL]
            yield pd.concat([repeated, rows.astype({name: str for name in texts})], axis=1)


def _runs(path: Path) -> pd.DataFrame:
    """One row a file whose header can be read: `KEYS`, `PROVENANCE`, then model dimensions and options of any."""
    rows = []
    for file in find_traces(path):
        try:
            rows.append({"file": name_below(path, file), **_facts(read_header(file))})
        except TraceError:
            pass  # said when its tables are read
    names = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame(
        {name: _column([row.get(name) for row in rows]) for name in [*KEYS, *PROVENANCE, *names]}
    )


def _facts(header: Header) -> dict[str, Any]:
    attributes, config = header.attributes, header.config
    simulation = config.simulation or {}
    return {
        **{name: getattr(attributes, name) for name in (*KEYS, *PROVENANCE) if hasattr(attributes, name)},
        "model": config.options.get("model"),
        "platform": simulation.get("platform"),
        "platform_changed": _text(simulation.get("changed") or None),
        **{f"model_{_name(dimension)}": _plain(value) for dimension, value in config.model.items()},
        **_options(config.options),
    }


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    elsewhere = ("scenario", "model")
    return {f"option_{_name(name)}": _plain(v) for name, v in options.items() if name not in elsewhere}


def _name(option: str) -> str:
    return option.replace("-", "_")


def _plain(value: Any) -> str | int | float | None:
    """Booleans as 0 and 1, as in the files; what has parts as text."""
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, str | int | float) else _text(value)


def _text(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={part}" for name, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return None if value is None else str(value)


def _column(values: Sequence[Any]) -> pd.Series:
    """Integers, real numbers or text, whichever holds all values; the same for every part, also where it has none."""
    known = [value for value in values if value is not None]
    if all(isinstance(value, int) for value in known):
        return pd.Series(values, dtype="Int64")
    if all(isinstance(value, int | float) for value in known):
        return pd.Series(values, dtype="float64")
    return pd.Series([None if value is None else str(value) for value in values], dtype="object")


def _points(path: Path, excluded: list[Excluded]) -> pd.DataFrame:
    launches: list[Launch] = []
    for name, trace in usable_traces(path, excluded):
        if trace.attributes.scenario == BENCHMARK:
            excluded.append(Excluded(name, "no timed steps; --table collectives exports it"))
        else:
            launches.append(reduce_trace(trace, name))
    rows = [
        {"model": study.model, "psi": study.psi, **_point(series, point)}
        for study in studies_of(launches)
        for series in study.series
        for point in series.points
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame({name: _column([row.get(name) for row in rows]) for name in names})


def _point(series: Series, point: Point) -> dict[str, Any]:
    """Times of the median step with their 95 % intervals; what is not known is empty."""
    launch = point.typical
    peak, ledger = point.peak, launch.ledger
    return {
        "scenario": series.scenario,
        "label": series.label,
        "world_size": point.size,
        "dp": launch.attributes.dp,
        "tp": launch.attributes.tp,
        "simulated": launch.attributes.simulated,
        "compute": launch.attributes.compute,
        "launches": len(point.launches),
        "intervals_from": point.basis,
        "step_s": point.step_s.median,
        "step_low_s": point.step_s.low,
        "step_high_s": point.step_s.high,
        "exposed_s": point.exposed_s.median,
        "exposed_low_s": point.exposed_s.low,
        "exposed_high_s": point.exposed_s.high,
        **{f"slowest_rank_{part}": seconds for part, seconds in launch.parts_s.items()},
        "tokens_per_step": launch.tokens_per_step,
        "tokens_per_s": point.tokens_per_s,
        "base_world_size": series.base.size,
        "efficiency": series.efficiency(point),
        "peak_memory_bytes": int(peak.total) if peak else None,
        "peak_memory_is_bound": int(peak.is_bound) if peak else None,
        "static_bytes": int(sum(ledger.static_bytes.values())) if ledger.rows else None,
        "static_textbook_bytes": ledger.static_textbook,
        "volume_elements": ledger.volume_measured,
        "volume_textbook_elements": ledger.volume_textbook,
        "ledger": point.ledger_verdict,
        "check": point.check,
        "oversubscribed": int(point.is_oversubscribed),
        "files": ",".join(launch.name for launch in point.launches),
        **_options(launch.config.options),
    }
