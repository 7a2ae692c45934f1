"""Reduces trace files to what a report shows.

A file is one launch. Launches of one configuration at one N form a point, points that differ only
in N form a series, series of one model form a study. Everything is seconds, bytes and elements.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shardbench import stats
from shardbench.bar import bar
from shardbench.busbw import BusBandwidth, bus_bandwidths
from shardbench.errors import UsageError
from shardbench.onestep import OneStep, one_step
from shardbench.overlap import Overlap, Rehearsal, block_rehearsal, overlap
from shardbench.plans import BENCHMARK
from shardbench.read import SAMPLED, Attributes, Config, Trace, TraceError, read_trace
from shardbench.stats import Estimate
from shardbench.stragglers import Unknown, Waits, split_waits
from shardbench.units import MILLISECONDS, exact, number, percent, plural
from shardbench.validate import ledger_mismatches

SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")
"""The order in which scenarios are listed: from nothing sharded to everything."""

STATIC_CATEGORIES = ("parameters", "gradients", "optimizer")

STRAGGLER_SHARE = 0.05
"""The part of a step from which on waiting for one rank is worth a warning."""

BESIDE_THE_STEP = ("trace", "check")
"""Options that set what is recorded and verified: the step is the same, though its time may feel them."""

NOT_CONFIGURATION = {
    # what N is, or follows from it
    *("ranks", "dp", "threads", "ranks-per-node"),
    # how long to measure and where to store it, not what a step does
    *("steps", "warmup", "window", "output", "overwrite"),
    *BESIDE_THE_STEP,
    # when to give up
    "stall-timeout",
}
"""Options that do not set a series apart from another."""


@dataclass(frozen=True)
class Ledger:
    """Per-rank memory and volume: what was measured, and what the schedule promises.

    Bytes for memory, elements for volume unless named bytes. Static memory is that of the rank that holds
    most of it, the volume that of the rank that communicates most. Absent quantities are None.
    """

    static_bytes: Mapping[str, float]
    static_expected: float | None
    static_textbook: float | None
    peak_textbook: float | None
    volume_measured: float | None
    volume_expected: float | None
    volume_textbook: float | None
    volume_bytes_measured: float | None
    volume_bytes_expected: float | None
    rows: int
    mismatches: tuple[str, ...]


@dataclass(frozen=True)
class Peak:
    """Peak tracked memory of the rank that needs most, bytes.

    `total` is exact where the file has a category total_tracked; else it is the sum of the
    categories' peaks, which need not coincide: an upper bound.
    """

    by_category: Mapping[str, float]
    total: float
    is_bound: bool
    process_high_water: float | None


@dataclass(frozen=True)
class RankTimes:
    """Each rank's medians over timed steps, seconds: its step, and the part that it did not wait.

    Ranks leave a synchronous step together, so a slow rank shows in its own work, and in the others' waits.
    `effect` is the share of the own work's variance that lies between ranks (`stats.rank_effect`).
    """

    ranks: NDArray[np.int64]
    step_s: NDArray[np.float64]
    own_s: NDArray[np.float64]
    effect: float | None


@dataclass(frozen=True)
class Launch:
    """One file, reduced. Times are per timed step, in seconds."""

    name: str
    attributes: Attributes
    config: Config
    hosts: tuple[str, ...]
    threads: int
    allowed_cpus: int
    tokens_per_step: int
    step_s: NDArray[np.float64]
    exposed_s: NDArray[np.float64]
    parts_s: Mapping[str, float]
    ledger: Ledger
    peak: Peak | None
    waits: Waits | Unknown
    overlap: Overlap | Unknown
    rehearsal: Rehearsal | Unknown
    rank_times: RankTimes
    one_step: OneStep | Unknown

    @property
    def size(self) -> int:
        """N, the number of ranks."""
        return self.attributes.world_size

    @property
    def shares_memory(self) -> bool:
        """Whether several ranks communicate by copying memory only, which says nothing about overlap."""
        return self.size > 1 and len(self.hosts) == 1 and not self.attributes.simulated

    @property
    def is_strong(self) -> bool:
        """Whether the global batch is fixed, so that N divides the work."""
        return self.config.options.get("global-batch") not in (None, 0, "", "unset")

    def setup(self) -> dict[str, Any]:
        """Everything but scenario, model and N that sets one series apart from another."""
        excluded = NOT_CONFIGURATION | {"model"} | ({"grad-accum"} if self.is_strong else set())
        options = {name: v for name, v in self.config.options.items() if name not in excluded}
        machine = {"platform": self.platform, **self.changed_figures}
        return {"backend": self.attributes.backend, "tp": self.attributes.tp} | machine | options

    @property
    def platform(self) -> str | None:
        """The simulated machine; None for real runs and unnamed machines."""
        platform = (self.config.simulation or {}).get("platform")
        return None if platform is None else str(platform)

    @property
    def changed_figures(self) -> dict[str, Any]:
        """What `--set` changed of the simulated machine."""
        return dict((self.config.simulation or {}).get("changed") or {})


@dataclass(frozen=True)
class Point:
    """All launches of one configuration at one N.

    `typical` is the launch with the (lower) median step time; `basis` says what the samples of the
    intervals are.
    """

    size: int
    launches: tuple[Launch, ...]
    typical: Launch
    step_s: Estimate
    exposed_s: Estimate
    basis: str

    @property
    def tokens_per_s(self) -> float:
        """Global tokens of a step over the median step time."""
        return self.typical.tokens_per_step / self.step_s.median

    @property
    def tokens_per_s_interval(self) -> tuple[float, float] | None:
        """The step time's interval as throughput; None where there is none."""
        if self.step_s.low is None or self.step_s.high is None:
            return None
        tokens = self.typical.tokens_per_step
        return tokens / self.step_s.high, tokens / self.step_s.low

    @property
    def exposed_share(self) -> float:
        """Median exposed communication over median step time."""
        return self.exposed_s.median / self.step_s.median

    @property
    def peak(self) -> Peak | None:
        """The peak of the launch that needed most."""
        peaks = [launch.peak for launch in self.launches if launch.peak]
        return max(peaks, key=lambda peak: peak.total) if peaks else None

    @property
    def ledger_verdict(self) -> str:
        """'ok', 'not recorded', or the first mismatch."""
        mismatches = [text for launch in self.launches for text in launch.ledger.mismatches]
        if mismatches:
            more = f" (and {len(mismatches) - 1} more)" if len(mismatches) > 1 else ""
            return mismatches[0] + more
        recorded = all(launch.ledger.rows for launch in self.launches)
        return "ok" if recorded else "not recorded"

    @property
    def check(self) -> str:
        """The worst result of the comparison with an unsharded reference."""
        results = {launch.attributes.check for launch in self.launches}
        return next((result for result in ("failed", "off") if result in results), min(results))

    @property
    def is_oversubscribed(self) -> bool:
        """Whether any launch had more threads than CPUs."""
        return any(launch.attributes.oversubscribed for launch in self.launches)


@dataclass(frozen=True)
class Series:
    """One configuration over N, in numeric order of N."""

    scenario: str
    label: str
    points: tuple[Point, ...]
    is_strong: bool

    @property
    def base(self) -> Point:
        """What efficiency and the ideal line refer to: the smallest N that is there."""
        return self.points[0]

    def tokens_at(self, size: int) -> float:
        """Tokens of a step at any N: the base's where the global batch is fixed, else in proportion to N."""
        tokens = self.base.typical.tokens_per_step
        return tokens if self.is_strong else tokens * size / self.base.size

    def efficiency(self, point: Point) -> float:
        """Throughput per rank against the base's; 1 is ideal."""
        return stats.scaling_efficiency(
            point.tokens_per_s, point.size, self.base.tokens_per_s, self.base.size
        )


@dataclass(frozen=True)
class Study:
    """The series of one model, all measured, with imitated compute, or simulated: what may be compared."""

    model: str
    psi: int
    is_simulated: bool
    compute: str
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        """What is compared, for a heading."""
        imitated = ", compute imitated" if self.compute == "timed" and not self.is_simulated else ""
        tokens = f", {self.sequence:,} tokens a sequence" if self.sequence else ""
        return f"Model {self.model}, Ψ = {self.psi:,} parameters{tokens}, {self.origin}{imitated}"

    @property
    def origin(self) -> str:
        """'measured', or 'simulated' with the machine where all runs share one."""
        if not self.is_simulated:
            return "measured"
        platforms = {launch.platform for launch in self.launches}
        return (
            f"simulated on {platforms.pop()}"
            if len(platforms) == 1 and None not in platforms
            else "simulated"
        )

    @property
    def sequence(self) -> int | None:
        """Tokens of a sequence; None where the model does not say."""
        return self.launches[0].config.model.get("seq")

    @property
    def launches(self) -> list[Launch]:
        """Every run of the study."""
        return [launch for series in self.series for point in series.points for launch in point.launches]

    @property
    def comparison(self) -> tuple[int, dict[str, Point]]:
        """The largest N at which most series have a point, and those points by label."""
        by_size = {
            size: {s.label: point for s in self.series for point in s.points if point.size == size}
            for size in self.sizes
        }
        size = max(by_size, key=lambda candidate: (len(by_size[candidate]), candidate))
        return size, by_size[size]

    @property
    def prefetch_families(self) -> list["PrefetchFamily"]:
        """Series that differ in nothing but how far ahead they gather, where there are two or more."""
        families: dict[tuple[str, str], dict[int, dict[Depth, Point]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        for series in self.series:
            setup = series.base.typical.setup()
            depth = prefetch_depth(setup.pop("prefetch", None))
            if depth is not None:
                by_size = families[(series.scenario, json.dumps(setup, sort_keys=True))]
                for point in series.points:
                    by_size[point.size][depth] = point
        return [
            PrefetchFamily(scenario, {size: dict(sorted(by_size[size].items())) for size in sorted(by_size)})
            for (scenario, _), by_size in families.items()
            if len({depth for by_depth in by_size.values() for depth in by_depth}) > 1
        ]

    @property
    def sizes(self) -> list[int]:
        """Every N that occurs, in numeric order."""
        return sorted({point.size for series in self.series for point in series.points})


Depth = tuple[int, int]
"""Groups gathered ahead of the one in use, in forward and in backward."""


@dataclass(frozen=True)
class PrefetchFamily:
    """Points by N and by prefetch depth, all else alike; both in numeric order."""

    scenario: str
    points: Mapping[int, Mapping[Depth, Point]]

    @property
    def depths(self) -> list[Depth]:
        """Every depth that occurs, in numeric order."""
        return sorted({depth for by_depth in self.points.values() for depth in by_depth})


def depth_text(depth: Depth) -> str:
    """As it is passed: one number where both directions have the same."""
    forward, backward = depth
    return str(forward) if forward == backward else f"{forward},{backward}"


def prefetch_depth(option: Any) -> Depth | None:
    """The option `prefetch` as groups ahead in forward and backward; None where a scenario has none."""
    parts = str(option).split(",")
    if not all(part.isdecimal() for part in parts):
        return None
    return int(parts[0]), int(parts[-1])


@dataclass(frozen=True)
class Excluded:
    """A file that is left out, and why; `has_failed` where its run did, or the check of its results."""

    name: str
    reason: str
    has_failed: bool = False


@dataclass
class Directory:
    """What was found below a directory."""

    name: str
    launches: list[Launch] = field(default_factory=list)
    bandwidths: list[BusBandwidth] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)

    @property
    def studies(self) -> list[Study]:
        """The launches, grouped; see the module's text."""
        return _studies(self.launches)


def find_traces(path: Path) -> list[Path]:
    """The file itself, or every *.h5 below the folder, in the order of names.

    Raises:
        UsageError: there is nothing to read.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist; pass the folder that holds .h5 files, or one of them")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} is no regular file; pass the folder that holds .h5 files, or one of them")
    # Regular files only: opening a pipe of that name would wait for ever.
    files = sorted(p for p in path.rglob("*.h5") if p.is_file())
    if not files:
        raise UsageError(f"no *.h5 file below {path}; run a scenario with --output {path}/NAME.h5")
    return files


def name_below(path: Path, file: Path) -> str:
    """How a file that `find_traces(path)` has found is called, in one line; its name need not be UTF-8, this is."""
    name = os.fsencode(file.name if file == path else file.relative_to(path)).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def usable_traces(
    path: Path, excluded: list[Excluded], *, for_fits: bool = False
) -> Iterator[tuple[str, Trace]]:
    """Reads a file, or each below a folder, one at a time: its name there, and what it holds.

    Files of the program `collectives` are among them. What is incomplete, damaged or a copy of another is added to
    `excluded` instead; for fits so is what `unfit` names.

    Raises:
        UsageError: there is nothing to read.
    """
    names_by_launch: dict[tuple[str, ...], str] = {}
    for file in bar(find_traces(path), "file"):
        name = name_below(path, file)
        try:
            trace = read_trace(file)
        except TraceError as error:
            excluded.append(Excluded(name, "; ".join(error.problems)))
            continue
        attributes = trace.attributes
        identity = (attributes.launch_id, attributes.created_utc, attributes.command_line)
        original = names_by_launch.setdefault(identity, name)
        reason = unusable(trace) or (f"a copy of {original}" if original != name else None)
        if for_fits:
            reason = reason or unfit(trace)
        if reason:
            excluded.append(Excluded(name, reason, has_failed=attributes.status == "failed"))
        else:
            yield name, trace


def read_directory(path: Path) -> Directory:
    """Reads all *.h5 below a directory, or one file, and keeps the summaries.

    Files that are incomplete, damaged, copies of another, or without timed steps are listed in `excluded`.

    Raises:
        UsageError: there is nothing to read.
    """
    found = Directory(str(path))
    for name, trace in usable_traces(path, found.excluded):
        if trace.attributes.scenario == BENCHMARK:
            found.bandwidths += bus_bandwidths(
                trace.collectives, trace.attributes.world_size, name, _origin(trace)
            )
        else:
            found.launches.append(reduce_trace(trace, name))
    found.excluded.sort(key=lambda excluded: excluded.name)
    return found


def _origin(trace: Trace) -> str:
    if not trace.attributes.simulated:
        return "measured"
    platform = (trace.config.simulation or {}).get("platform")
    return f"simulated on {platform}" if platform else "simulated"


def unusable(trace: Trace) -> str | None:
    """Why a file's numbers must not be used for anything, or None."""
    if trace.incomplete:
        return trace.incomplete
    if trace.attributes.scenario == BENCHMARK:
        return None if (trace.collectives["window"] >= 0).any() else "no timed collectives"
    step_s = stats.timed_steps(trace.steps)["step_s"]
    if step_s.empty:
        return f"no timed steps (scenario '{trace.attributes.scenario}')"
    if missing := _missing_steps(trace):
        return missing
    is_time = np.isfinite(step_s) & (step_s > 0)
    if not is_time.all():
        return f"a step time of {step_s[~is_time].iloc[0]} s"
    if stats.tokens_per_step(trace.steps) == 0:
        return "no tokens in the timed steps"
    return None


def _missing_steps(trace: Trace) -> str | None:
    """Status and rows disagree where rows were lost on the way."""
    options = trace.config.options
    if not all(isinstance(options.get(name), int) for name in ("warmup", "steps")):
        return (
            "the options 'warmup' and 'steps' are not recorded, so nothing tells whether all steps are there"
        )
    expected = options["warmup"] + options["steps"]
    found = (
        trace.steps.groupby("rank")["step"]
        .nunique()
        .reindex(range(trace.attributes.world_size), fill_value=0)
    )
    rank = found.idxmin()
    if found[rank] < expected:
        return f"{found[rank]} of {expected} steps on rank {rank}, although the status is 'complete'"
    return None


def unfit(trace: Trace) -> str | None:
    """Why a usable file's times must stay out of fits, or None."""
    if trace.attributes.oversubscribed:
        return "oversubscribed: more threads than CPUs, so that times are those of the queue for a core"
    if trace.attributes.check == "failed":
        return "its check failed: it did not do the work that its times are of"
    return None


def reduce_trace(trace: Trace, name: str) -> Launch:
    """Reduces a usable trace to a `Launch` that is called `name`."""
    parts = stats.parts_of_slowest_rank(trace.steps)
    return Launch(
        name=name,
        attributes=trace.attributes,
        config=trace.config,
        hosts=tuple(sorted(set(trace.ranks["host"]))),
        threads=int(trace.ranks["threads"].max()),
        allowed_cpus=int(trace.ranks["allowed_cpus"].max()),
        tokens_per_step=stats.tokens_per_step(trace.steps),
        step_s=stats.maximum_over_ranks(trace.steps, "step_s"),
        exposed_s=stats.maximum_over_ranks(trace.steps, "exposed_s"),
        parts_s={part: float(parts[part].median()) for part in stats.PARTS},
        ledger=_ledger(trace.ledger),
        peak=_peak(trace.memory_peak),
        waits=split_waits(trace.ranks, trace.clock, trace.steps, trace.events),
        overlap=_overlap(trace),
        rehearsal=block_rehearsal(trace.calibration),
        rank_times=_rank_times(trace.steps),
        one_step=one_step(trace.steps, trace.events),
    )


def _rank_times(steps: pd.DataFrame) -> RankTimes:
    worked = steps.assign(own_s=steps["step_s"] - steps["exposed_s"])
    medians = stats.timed_steps(worked).groupby("rank")[["step_s", "own_s"]].median()
    return RankTimes(
        medians.index.to_numpy(),
        medians["step_s"].to_numpy(),
        medians["own_s"].to_numpy(),
        stats.rank_effect(worked, "own_s"),
    )


def _overlap(trace: Trace) -> Overlap | Unknown:
    layers = trace.config.model.get("layers")
    if not isinstance(layers, int):
        return Unknown("number of layers not recorded")
    return overlap(trace.calibration, trace.steps, trace.events, layers)


def _ledger(table: pd.DataFrame) -> Ledger:
    memory = _rank_with_most(table[table["axis"] == "world"], "static_bytes")
    volume = _rank_with_most(table[table["axis"] == "dp"], "volume_elements")
    mismatches = ledger_mismatches(table)
    return Ledger(
        static_bytes={c: _cell(memory, f"{c}_bytes", "measured") or 0.0 for c in STATIC_CATEGORIES},
        static_expected=_cell(memory, "static_bytes", "expected"),
        static_textbook=_cell(memory, "textbook_static_bytes", "expected"),
        peak_textbook=_largest(table, "textbook_peak_bytes", "expected"),
        volume_measured=_cell(volume, "volume_elements", "measured"),
        volume_expected=_cell(volume, "volume_elements", "expected"),
        volume_textbook=_cell(volume, "textbook_volume_elements", "expected"),
        volume_bytes_measured=_cell(volume, "volume_bytes", "measured"),
        volume_bytes_expected=_cell(volume, "volume_bytes", "expected"),
        rows=len(table),
        mismatches=tuple(_mismatch(row) for row in mismatches.to_dict("records")),
    )


def _rank_with_most(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The ledger of the rank with the largest measured quantity, indexed by quantity."""
    candidates = table[table["quantity"] == quantity]
    if candidates.empty:
        return table.head(0).set_index("quantity")
    rank = candidates.loc[candidates["measured"].idxmax(), "rank"]
    return table[table["rank"] == rank].set_index("quantity")


def _cell(table: pd.DataFrame, quantity: str, column: str) -> float | None:
    return float(table.at[quantity, column]) if quantity in table.index else None


def _largest(table: pd.DataFrame, quantity: str, column: str) -> float | None:
    values = table.loc[table["quantity"] == quantity, column]
    return None if values.empty else float(values.max())


def _mismatch(row: Mapping[Any, Any]) -> str:
    return (
        f"rank {row['rank']}, {row['axis']} {row['quantity']}: expected {exact(row['expected'])} + "
        f"padding {exact(row['padding'])}, measured {exact(row['measured'])}"
    )


def _peak(table: pd.DataFrame) -> Peak | None:
    """Sampled categories stay apart: they count shared pages on every rank, and memory of others."""
    peaks = table.pivot_table("peak_bytes", "rank", "category", aggfunc="max", fill_value=0)
    tracked = peaks[[c for c in peaks if c != "total_tracked" and not str(c).startswith(SAMPLED)]]
    if tracked.empty:
        return None
    is_bound = "total_tracked" not in peaks
    totals = tracked.sum(axis=1) if is_bound else peaks["total_tracked"]
    return Peak(
        by_category={str(c): float(value) for c, value in tracked.loc[totals.idxmax()].items()},
        total=float(totals.max()),
        is_bound=is_bound,
        process_high_water=float(peaks["process_hwm"].max()) if "process_hwm" in peaks else None,
    )


def _studies(launches: Iterable[Launch]) -> list[Study]:
    by_study: dict[tuple[Any, ...], list[Launch]] = defaultdict(list)
    for launch in launches:
        model = str(launch.config.options.get("model", "unnamed"))
        shape = json.dumps(launch.config.model, sort_keys=True)
        attributes = launch.attributes
        key = (attributes.simulated, attributes.compute, attributes.psi, model, shape)
        by_study[key].append(launch)
    return [
        Study(model, psi, bool(simulated), compute, _series(members))
        for (simulated, compute, psi, model, _), members in sorted(by_study.items())
    ]


def _series(launches: Sequence[Launch]) -> tuple[Series, ...]:
    by_setup: dict[tuple[str, str], list[Launch]] = defaultdict(list)
    for launch in launches:
        setup = json.dumps(launch.setup(), sort_keys=True)
        by_setup[(launch.attributes.scenario, setup)].append(launch)
    labels = _labels(by_setup)
    series = [
        Series(key[0], labels[key], _points(members), members[0].is_strong)
        for key, members in by_setup.items()
    ]
    return tuple(sorted(series, key=lambda s: (_scenario_order(s.scenario), s.label)))


def _scenario_order(scenario: str) -> tuple[int, str]:
    known = scenario in SCENARIOS
    return (SCENARIOS.index(scenario) if known else len(SCENARIOS), scenario)


def _labels(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The scenario, and the options in which its series differ from one another."""
    setups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for scenario, setup in keys:
        setups[scenario].append(json.loads(setup))
    differing = {
        (scenario, setup): dict(_distinguishing(json.loads(setup), setups[scenario]))
        for scenario, setup in keys
    }
    short = {key: _label(key[0], _shown(options)) for key, options in differing.items()}
    # What is not set need not be said, unless nothing else tells two series apart.
    ambiguous = {label for label, count in Counter(short.values()).items() if count > 1}
    return {
        key: _label(key[0], [f"{name} {json.dumps(value)}" for name, value in differing[key].items()])
        if label in ambiguous
        else label
        for key, label in short.items()
    }


def _label(scenario: str, options: Sequence[str]) -> str:
    return f"{scenario} ({', '.join(options)})" if options else scenario


def _distinguishing(
    setup: Mapping[str, Any], all_setups: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Any]]:
    for option, value in setup.items():
        if any(other.get(option) != value for other in all_setups):
            yield option, value


def _shown(options: Mapping[str, Any]) -> list[str]:
    """Options as they are passed: switches by name, an object's parts as `name=value`."""
    shown = []
    for option, value in options.items():
        if option == "prefetch" and (depth := prefetch_depth(value)):
            value = depth_text(depth)
        if isinstance(value, Mapping):
            value = ",".join(f"{name}={part}" for name, part in value.items())
        if value is True:
            shown.append(option)
        elif value is not None and value is not False and value != "":
            shown.append(f"{option} {value}")
    return shown


def _points(launches: Iterable[Launch]) -> tuple[Point, ...]:
    by_size: dict[int, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_size[launch.size].append(launch)
    return tuple(make_point(by_size[size]) for size in sorted(by_size))


def make_point(launches: Sequence[Launch]) -> Point:
    """Combines the launches of one configuration at one N.

    With six launches or more, the samples are the launches' medians. With fewer, they are the
    steps of the launch with the median step time: an interval that says nothing about how the
    next launch would differ, and is labelled so.
    """
    ordered = sorted(launches, key=lambda launch: float(np.median(launch.step_s)))
    typical = ordered[(len(ordered) - 1) // 2]
    if len(launches) >= stats.MINIMUM_SAMPLES:
        step_s = stats.estimate_median([float(np.median(launch.step_s)) for launch in launches])
        exposed_s = stats.estimate_median([float(np.median(launch.exposed_s)) for launch in launches])
        basis = plural(len(launches), "launch")
    else:
        step_s = stats.estimate_median(typical.step_s)
        exposed_s = stats.estimate_median(typical.exposed_s)
        steps = plural(step_s.samples, "step")
        basis = (
            f"none: {steps} < {stats.MINIMUM_SAMPLES}" if step_s.low is None else f"within launch, {steps}"
        )
    return Point(typical.size, tuple(launches), typical, step_s, exposed_s, basis)


def warnings(launches: Sequence[Launch]) -> list[str]:
    """What a reader must know before believing the numbers, one sentence each."""
    return [
        *_oversubscription(launches),
        *_unsteady(launches),
        *_stragglers(launches),
        *_shared_memory(launches),
        *_failed_checks(launches),
        *_several_commits(launches),
    ]


def _oversubscription(launches: Sequence[Launch]) -> Iterator[str]:
    crowded = [launch for launch in launches if launch.attributes.oversubscribed]
    if crowded:
        worst = max(crowded, key=lambda launch: launch.size * launch.threads)
        threads, cpus = plural(worst.threads, "thread"), plural(worst.allowed_cpus, "CPU")
        yield (
            f"{plural(len(crowded), 'run')} with more threads than CPUs (up to {worst.size} ranks × "
            f"{threads}, {cpus} allowed): ranks took turns, so these step times say "
            "little about scaling. They are marked with *."
        )


def _unsteady(launches: Sequence[Launch]) -> Iterator[str]:
    unsteady = [launch.name for launch in launches if not launch.attributes.steady]
    if unsteady:
        yield (
            f"{plural(len(unsteady), 'run')} not steady: the two halves of the timed steps differ. "
            f"Run more warm-up steps. {_some(unsteady)}"
        )


def _stragglers(launches: Sequence[Launch]) -> Iterator[str]:
    """Names the rank that others wait for, the worst run first."""
    found = []
    for launch in launches:
        waits = launch.waits
        if isinstance(waits, Unknown) or waits.late_rank is None or not waits.late.is_resolved:
            continue
        share = waits.late.seconds / float(np.median(launch.step_s))
        if share > STRAGGLER_SHARE:
            late = f"rank {waits.late_rank} is waited for: {number(waits.late.seconds * MILLISECONDS, 3)} ms"
            found.append((share, f"{launch.name}: {late} a step ({percent(share)})"))
    if found:
        worst = [text for _, text in sorted(found, key=lambda item: -item[0])]
        more = f"; and {len(worst) - 3} more" if len(worst) > 3 else ""
        yield (
            f"Ranks wait for a straggler for more than {percent(STRAGGLER_SHARE)} of the step in "
            f"{plural(len(worst), 'run')}. {'; '.join(worst[:3])}{more}."
        )


def _shared_memory(launches: Sequence[Launch]) -> Iterator[str]:
    shared = [launch.name for launch in launches if launch.shares_memory]
    if shared:
        yield (
            f"{plural(len(shared), 'run')} with all ranks on one host: messages are copies in shared "
            f"memory, made by the cores that also compute. What overlap gains is not measurable here."
        )


def _failed_checks(launches: Sequence[Launch]) -> Iterator[str]:
    failed = [launch.name for launch in launches if launch.attributes.check == "failed"]
    if failed:
        yield (
            f"{plural(len(failed), 'run')} whose check failed: gradients or masters differ from "
            f"the unsharded reference, so the numbers describe wrong training. {_some(failed)}"
        )


def _several_commits(launches: Sequence[Launch]) -> Iterator[str]:
    commits = sorted({launch.attributes.git_commit for launch in launches})
    if len(commits) > 1:
        short = ", ".join(commit[:12] for commit in commits)
        yield f"The runs come from {len(commits)} commits ({short}): differences may be the code's."


def _some(names: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"Files: {', '.join(names[:shown])}{more}."
