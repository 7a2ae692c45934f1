"""Reads a study: a TOML file whose lists make a grid."""

import difflib
import itertools
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardbench.errors import UsageError
from shardbench.plans import BENCHMARK
from shardbench.platforms import PlatformError, load_platform
from shardbench.sweep.point import Machine, Point, Run, Value, points_of, text_of

LAUNCHERS = ("mpiexec", "srun", "sbatch", "simulate")

FILE_KEYS = ("name", "description", "output", "seed", "study")
GRID_KEYS = ("scenario", "ranks", "model", "options", "repetitions", "launcher", "platform", "set")

SET_BY_SWEEP = ("model", "ranks", "output", "output_file", "overwrite", "plan", "rank", "help", "version")
"""Options that a study may not pass: keys of their own, or the sweep's business."""

DEFAULTS = {"model": "tiny", "repetitions": 1, "launcher": "mpiexec"}


@dataclass(frozen=True)
class Study:
    """What a file asks for.

    `points` are in the order of the grid, `runs` in the order of running. Each repetition visits every point once in an order of its own,
    so that slow drifts of the machine fall on all points alike.
    """

    path: Path
    text: str
    name: str
    output: Path
    points: tuple[Point, ...]
    runs: tuple[Run, ...]


def read_study(path: Path, launcher: str | None = None) -> Study:
    """Reads a study, whose grids are all started with `launcher` if that is given.

    Raises:
        UsageError: the file cannot be read, or does not say what it must.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); pass the path of a study") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {' '.join(str(error).split())}") from error
    _refuse_unknown(content, (*FILE_KEYS, *GRID_KEYS), str(path))
    seed = _whole(content.get("seed", 1), "seed", str(path), least=0)
    passes: dict[int, list[Run]] = {}
    distinct = _distinct(_all_runs(path, content, launcher), path, merge=launcher is not None)
    for run in distinct:
        passes.setdefault(run.repetition, []).append(run)
    runs = tuple(run for number in sorted(passes) for run in _shuffled(passes[number], seed, number))
    if "output" not in content:
        raise UsageError(
            f"{path}: no key 'output'; say where results go, as in output = \"results/{path.stem}\""
        )
    output = Path(_line(content["output"], "output", str(path)))
    name = _line(content.get("name", path.stem), "name", str(path))
    _line(content.get("description", name), "description", str(path))
    return Study(path, text, name, output, points_of(distinct), runs)


def _all_runs(path: Path, content: Mapping[str, Any], launcher: str | None) -> Iterator[Run]:
    shared = {key: value for key, value in content.items() if key in GRID_KEYS}
    tables = content.get("study", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: study must be [[study]] tables, each with a grid")
    for number, table in enumerate(tables, start=1):
        where = f"{path}: [[study]] {number}" if "study" in content else str(path)
        _refuse_unknown(table, GRID_KEYS, where)
        grid = _merged(shared, table, where)
        own = table if "study" in content else shared
        if "model" in own and grid.get("scenario") in (BENCHMARK, [BENCHMARK]):
            raise UsageError(f"{where}: {BENCHMARK} trains no model; leave the key 'model' out")
        yield from _runs(grid, where, launcher)


def _distinct(runs: Iterable[Run], path: Path, merge: bool) -> list[Run]:
    """Each run once. Grids that differ only in how they are started may `merge` when all are started alike."""
    found: dict[str, Run] = {}
    for run in runs:
        if run.name in found and not merge:
            reason = "a point is one configuration, launched again by repetitions = N"
            raise UsageError(f"{path}: {run.point.name} occurs twice; {reason}")
        found[run.name] = run
    return list(found.values())


def _shuffled(runs: Sequence[Run], seed: int, repetition: int) -> list[Run]:
    order = list(runs)
    random.Random(f"{seed}, {repetition}").shuffle(order)
    return order


def _merged(shared: Mapping[str, Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a grid says, and where it says nothing, what the file says for all of them."""
    grid = {**DEFAULTS, **shared, **table}
    for key in ("options", "set"):
        grid[key] = [
            {**common, **own}
            for common in _tables(shared.get(key, {}), key, where)
            for own in _tables(table.get(key, {}), key, where)
        ]
    return grid


def _tables(value: Any, key: str, where: str) -> list[dict[str, Any]]:
    tables = value if isinstance(value, list) else [value]
    if not tables or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{where}: {key} must be a table of names and values, or a list of such tables")
    return tables


def _runs(grid: Mapping[str, Any], where: str, override: str | None) -> Iterator[Run]:
    launcher = override or grid["launcher"]
    if launcher not in LAUNCHERS:
        raise UsageError(f"{where}: launcher {launcher!r} is not one of {', '.join(LAUNCHERS)}")
    repetitions = _whole(grid["repetitions"], "repetitions", where)
    scenarios = _list(grid, "scenario", where, _name)
    all_ranks = _list(grid, "ranks", where, _whole)
    models = _list(grid, "model", where, _name)
    all_options = list(_options(grid["options"], where))
    machines: list[Machine | None] = [*_machines(grid, where)] if launcher == "simulate" else [None]
    for scenario in scenarios:
        axes = (all_ranks, [None] if scenario == BENCHMARK else models, all_options, machines)
        for ranks, model, options, machine in itertools.product(*axes):
            point = Point(scenario, ranks, model, options, machine)
            for repetition in range(1, repetitions + 1):
                yield Run(point, repetition, launcher)


def _machines(grid: Mapping[str, Any], where: str) -> Iterator[Machine]:
    if "platform" not in grid:
        raise UsageError(
            f"{where}: no key 'platform', which a simulation needs; add platform = \"h100-fat-tree\""
        )
    names = _list(grid, "platform", where, _line)
    for name, table in itertools.product(names, grid["set"]):
        for overrides in _combinations(table, f"{where}: set"):
            try:
                platform = load_platform(
                    name, [f"{key}={text_of(value)}" for key, value in overrides.items()]
                )
            except PlatformError as error:
                raise UsageError(f"{where}: {error}") from error
            figures = {key: value for key, value in platform.values.items() if key != "description"}
            yield Machine(name, overrides, figures)


def _options(tables: Iterable[Mapping[str, Any]], where: str) -> Iterator[dict[str, Value]]:
    for table in tables:
        for name in table:
            if name in SET_BY_SWEEP:
                raise UsageError(f"{where}: options.{name} is not the study's to say: {_instead_of(name)}")
            if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
                raise UsageError(
                    f"{where}: options.{name} is no option; use long names without dashes, as in prefetch = 1"
                )
        for combination in _combinations(table, f"{where}: options"):
            yield {name: value for name, value in combination.items() if value is not False}


def _instead_of(option: str) -> str:
    if option == "output_file":
        return "nothing would tell which launch wrote which of its files; the HDF5 files hold more"
    return f"use the key '{option}'" if option in GRID_KEYS + FILE_KEYS else "the sweep passes it itself"


def _combinations(table: Mapping[str, Any], where: str) -> Iterator[dict[str, Value]]:
    axes = [_list(table, name, where, _argument) for name in table]
    for values in itertools.product(*axes):
        yield dict(zip(table, values, strict=True))


def _list(table: Mapping[str, Any], key: str, where: str, check: Callable[[Any, str, str], Any]) -> list[Any]:
    if key not in table:
        raise UsageError(f"{where}: no key '{key}'; a grid needs scenario and ranks")
    values = table[key] if isinstance(table[key], list) else [table[key]]
    if not values:
        raise UsageError(f"{where}: {key} is an empty list, so that there is nothing to run")
    return [check(value, key, where) for value in values]


def _whole(value: Any, key: str, where: str, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{where}: {key} = {value!r} is not a whole number from {least} on")
    return value


def _name(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", value):
        raise UsageError(f"{where}: {key} = {value!r} is not a name")
    return value


def _argument(value: Any, key: str, where: str) -> Value:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _line(value, key, where)
    raise UsageError(f"{where}: {key} = {value!r} is neither a number, true, false nor text")


def _line(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise UsageError(f"{where}: {key} = {value!r} is not a line of text")
    return value


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0)
            raise UsageError(f"{where}: key '{key}' is unknown; did you mean '{near[0]}'?")
