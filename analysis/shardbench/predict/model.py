"""A directory's files → for each configuration a model that gives step time and memory at any N."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from shardbench import stats
from shardbench.errors import RunError, UsageError
from shardbench.plans import BENCHMARK
from shardbench.predict import alphabeta
from shardbench.predict.alphabeta import LOCAL, OPAQUE, Fit, Group, Kind, Line, Sample
from shardbench.predict.costs import LocalCosts, Observation, local_costs, observe
from shardbench.predict.replay import Step, Times, replay
from shardbench.predict.samples import group_of, kind_of, pooled, ranks_per_node, samples_of
from shardbench.predict.schedule import (
    DIMENSIONS,
    Collective,
    Local,
    Schedule,
    Setup,
    plan,
    setup_facts,
    setup_of,
)
from shardbench.read import Config, Trace
from shardbench.summary import setups
from shardbench.units import plural

TELLING = 0.005
"""Part of a step that has to be communication for a prediction of it to prove anything."""

DRAWS = 200
"""Of the uncertain costs; the 95 % interval of a prediction are the 5th smallest and largest step but for rounding."""

SEED = 1
"""So that the same files give the same output."""

COST_OPTIONS = ("compute", "flops", "calibration", "jitter", "contention", "algorithm", "progress")
"""Options that change what operations cost, and little or nothing about the schedule."""


@dataclass(frozen=True)
class Place:
    """Where a run's communication took place: what may be fitted together. `machine`: JSON of the simulated one, or empty."""

    backend: str
    machine: str

    @property
    def platform(self) -> str:
        """The simulated one's name; empty where ranks were real."""
        return str(json.loads(self.machine)["name"]) if self.machine else ""

    @property
    def name(self) -> str:
        """The simulated platform's, or the backend."""
        return f"simulated {self.platform}" if self.machine else f"measured ({self.backend})"


@dataclass(frozen=True)
class Measured:
    """One usable file, reduced. `local` is None without events; step_s and exposed_s are 0 for the program collectives.

    `setup` is what sets its series apart from others in a report.
    """

    name: str
    scenario: str
    ranks: int
    per_node: int
    threads: int
    step_s: float
    exposed_s: float
    place: Place
    samples: Mapping[Kind, list[Sample]]
    config: Config
    setup: Mapping[str, Any]
    local: Observation | None

    @property
    def trains(self) -> bool:
        return self.scenario != BENCHMARK

    @property
    def is_simulated(self) -> bool:
        return bool(self.place.machine)

    @property
    def costs_key(self) -> str:
        """What changes operations' costs and nothing about the schedule."""
        return json.dumps([self.threads, *(self.config.options.get(name) for name in COST_OPTIONS)])


def measure(trace: Trace, name: str) -> Measured:
    """Reduces a usable trace."""
    trains = trace.attributes.scenario != BENCHMARK
    return Measured(
        name=name,
        scenario=trace.attributes.scenario,
        ranks=trace.attributes.world_size,
        per_node=ranks_per_node(trace),
        threads=int(trace.ranks["threads"].max()),
        step_s=float(np.median(stats.maximum_over_ranks(trace.steps, "step_s"))) if trains else 0.0,
        exposed_s=float(np.median(stats.maximum_over_ranks(trace.steps, "exposed_s"))) if trains else 0.0,
        place=Place(trace.attributes.backend, _machine(trace.config.simulation)),
        samples=samples_of(trace),
        config=trace.config,
        setup=setups.setup(trace.attributes, trace.config),
        local=observe(trace) if trains and not trace.events.empty else None,
    )


def _machine(simulation: Mapping[str, Any] | None) -> str:
    """The simulated machine but for its size."""
    if not simulation:
        return ""
    return json.dumps({k: v for k, v in simulation["machine"].items() if k != "ranks"}, sort_keys=True)


@dataclass(frozen=True)
class Prediction:
    """Of one configuration at one N. Seconds, bytes; `low_s` and `high_s` bound the step with 95 %.

    `outside`: collectives with a larger part of latency than any sample has. If the library has a faster way there, the step
    is shorter than `step_s`. `undecided`: collectives of which too few sizes of groups were seen to tell whether latency grows
    with them; if it does not, the step is shorter, too. The interval contains both.
    """

    ranks: int
    step_s: float
    low_s: float
    high_s: float
    exposed_s: float
    without_communication_s: float
    tokens: int
    peak_bytes: int
    outside: tuple[str, ...]
    undecided: tuple[str, ...]

    @property
    def is_doubtful(self) -> bool:
        return bool(self.outside or self.undecided)

    @property
    def exposed_share(self) -> float:
        return self.exposed_s / self.step_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.step_s


@dataclass(frozen=True)
class Skill:
    """How much better than a model without communication: 1 is perfect, 0 no better, negative worse.

    `ranks`: where it was tried; `held_out`: on a point that the fit had not seen. `value` is None where communication makes
    less than `TELLING` of the step, so that no model of it can be told from none.
    """

    value: float | None
    error: float
    ranks: int
    held_out: bool


@dataclass(frozen=True)
class Model:
    """One configuration on one machine. `lines`: all that is known of its machine's collectives."""

    setup: Setup
    per_node: int
    local: LocalCosts
    lines: Mapping[Kind, Fit]
    binaries: Path
    residual: float = 0.0

    def schedule(self, ranks: int) -> Schedule:
        return plan(self.setup, ranks, self.binaries)

    def is_doubtful(self, ranks: int) -> bool:
        """What `predict(ranks).is_doubtful` says, without the replay.

        Raises:
            RunError, UsageError: as `predict`.
        """
        schedule = self.schedule(ranks)
        costs = _Draws(self, schedule)
        for operation in dict.fromkeys(op for op in schedule.operations if isinstance(op, Collective)):
            costs.collective_s(operation)
        return bool(costs.outside or costs.undecided)

    def predict(self, ranks: int) -> Prediction:
        """
        Raises:
            RunError: the schedule needs what no file shows, or the executable refuses this N (NoSchedule).
            UsageError: there is no executable.
        """
        schedule = self.schedule(ranks)
        costs = _Draws(self, schedule)
        step = replay(schedule.operations, costs.local_s, costs.collective_s)
        bare = replay(schedule.operations, costs.local_s, lambda _: np.zeros(1))
        typical, *drawn = step.step_s
        low, high = np.quantile(drawn, (0.025, 0.975))
        widening = float(np.exp(self.residual))
        return Prediction(
            ranks=ranks,
            step_s=float(typical),
            low_s=min(float(low), typical) / widening,
            high_s=max(float(high), typical) * widening,
            exposed_s=float(_first(step)),
            without_communication_s=float(bare.step_s[0]),
            tokens=schedule.tokens,
            peak_bytes=schedule.peak_bytes,
            outside=tuple(sorted(map(str, costs.outside))),
            undecided=tuple(sorted(map(str, costs.undecided))),
        )


def _first(step: Step) -> float:
    return float(step.exposed_s[0])


class _Draws:
    """Costs of a schedule's operations: first the fitted ones, then `DRAWS` that the data allow as well."""

    def __init__(self, model: Model, schedule: Schedule) -> None:
        self._model, self._schedule = model, schedule
        self._random = np.random.default_rng(SEED)
        self._part = np.concatenate([[1.0], np.linspace(0.0, 1.0, DRAWS)])
        self._local: dict[Local, Times] = {}
        self._collective: dict[Collective, Times] = {}
        self._coefficients: dict[Line, Times] = {}
        self.outside: set[Kind] = set()
        self.undecided: set[Kind] = set()

    def local_s(self, operation: Local) -> Times:
        if operation not in self._local:
            self._local[operation] = self._draw_local(operation) + self._model.local.gap_s
        return self._local[operation]

    def collective_s(self, operation: Collective) -> Times:
        if operation not in self._collective:
            self._collective[operation] = self._draw_collective(operation)
        return self._collective[operation]

    def _draw_local(self, operation: Local) -> Times:
        cost = self._model.local.costs.get(operation)
        if cost is None:
            raise RunError(
                f"no file shows what {operation.kind} of {operation.block} in {operation.phase} costs; "
                "add a run of the same configuration with --trace events"
            )
        # Log-normal: never below zero, and with this relative deviation.
        sigma = np.sqrt(np.log1p(cost.spread**2))
        factors = np.exp(sigma * self._random.standard_normal(DRAWS + 1))
        factors[0] = 1.0
        return np.asarray(cost.seconds(self._schedule.dp) * factors)

    def _draw_collective(self, operation: Collective) -> Times:
        if operation.algorithm == LOCAL:
            return np.zeros(1)
        fit, group = self._fit(operation)
        line = fit.line(group, operation.size)
        if line not in self._coefficients:
            self._coefficients[line] = np.vstack([line.values, line.draws(DRAWS, self._random)])
        coefficients = self._coefficients[line]
        seconds = line.seconds(group, operation.size, coefficients)
        certain = seconds
        if fit.kind.algorithm in OPAQUE and not fit.is_seen(group, operation.size):
            # It may have a way with less latency that no sample shows. How much less is unknown: from all to nothing.
            self.outside.add(fit.kind)
            certain = line.seconds(group, operation.size, coefficients * line.is_beta)
        elif known := fit.last_known(group):
            self.undecided.add(fit.kind)
            latency = line.seconds(group, 0, coefficients)
            certain = seconds - latency + line.seconds(known, 0, coefficients)
        return np.asarray(certain + self._part * (seconds - certain))

    def _fit(self, operation: Collective) -> tuple[Fit, Group]:
        model, schedule = self._model, self._schedule
        group = group_of(operation.axis, schedule.dp, schedule.tp, model.per_node)
        kind = kind_of(
            *(operation.collective, operation.algorithm, operation.dtype, operation.axis), schedule.tp, group
        )
        fit = model.lines.get(kind)
        if fit is None:
            raise RunError(_unidentifiable(kind, model))
        return fit, group


def _unidentifiable(kind: Kind, model: Model) -> str:
    if kind.spans_nodes and not any(known.spans_nodes for known in model.lines):
        return (
            f"inter-node alpha and beta are not identifiable: all points lie within one node of "
            f"{plural(model.per_node, 'rank')}; add runs on two nodes or more, better on several numbers of them"
        )
    return (
        f"alpha and beta of {kind} are not identifiable: no usable file has such a collective; add runs that use it, "
        "or a run of collectives"
    )


def fit_places(files: Iterable[Measured]) -> dict[Place, dict[Kind, Fit]]:
    """The lines of each machine."""
    by_place: dict[Place, list[Measured]] = defaultdict(list)
    for file in files:
        by_place[file.place].append(file)
    return {
        place: {
            kind: alphabeta.fit(kind, samples)
            for kind, samples in sorted(
                pooled(m.samples for m in members).items(), key=lambda item: str(item[0])
            )
        }
        for place, members in by_place.items()
    }


@dataclass(frozen=True)
class Configuration:
    """The files that differ in N only, and how to ask for their schedules."""

    label: str
    setup: Setup
    place: Place
    files: tuple[Measured, ...]

    @property
    def is_simulated(self) -> bool:
        return bool(self.place.machine)

    @property
    def algorithm(self) -> str:
        return str(self.files[0].config.options.get("algorithm"))

    @property
    def measured(self) -> dict[int, Measured]:
        """By N; of several launches the median one."""
        by_size: dict[int, list[Measured]] = defaultdict(list)
        for file in sorted(self.files, key=lambda file: file.step_s):
            by_size[file.ranks].append(file)
        return {ranks: by_size[ranks][(len(by_size[ranks]) - 1) // 2] for ranks in sorted(by_size)}


def configurations(
    files: Sequence[Measured], binaries: Path, refuse: Callable[[str, str], None] | None = None
) -> list[Configuration]:
    """Groups the files that train. `refuse` gets each file that has no schedule, and the reason; without it that is raised.

    Raises:
        UsageError, RunError: an executable is missing, or does not plan a configuration.
    """
    asked: dict[str, Setup | None] = {}
    groups: dict[tuple[Setup, Place, str], list[Measured]] = defaultdict(list)
    for file in files:
        if not file.trains:
            continue
        question = json.dumps([file.scenario, setup_facts(file.config)], sort_keys=True)
        if question not in asked:
            try:
                asked[question] = setup_of(file.scenario, file.config, binaries)
            except (UsageError, RunError) as error:
                if refuse is None:
                    raise
                refuse(file.name, str(error))
                asked[question] = None
        if setup := asked[question]:
            groups[setup, file.place, file.costs_key].append(file)
    labels = _labels([(setup, place, members[0]) for (setup, place, _), members in groups.items()])
    found = [
        Configuration(label, setup, place, tuple(members))
        for label, ((setup, place, _), members) in zip(labels, groups.items(), strict=True)
    ]
    return sorted(found, key=lambda c: (c.is_simulated, c.setup.scenario, c.label))


def _labels(groups: Sequence[tuple[Setup, Place, Measured]]) -> list[str]:
    """As a report calls them, then what there is the heading: the model and the origin, where there are several."""
    models = {setup.model for setup, _, _ in groups}
    origins = {file.is_simulated for _, _, file in groups}
    members: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for index, (setup, _, file) in enumerate(groups):
        members[setup.model, file.is_simulated].append(index)
    found = [""] * len(groups)
    for (model, is_simulated), indices in members.items():
        heading = [model] if len(models) > 1 else []
        heading += ["simulated" if is_simulated else "measured"] if len(origins) > 1 else []
        named = setups.labels([(groups[index][0].scenario, _facts(groups[index][2])) for index in indices])
        for index, label in zip(indices, named):
            found[index] = ", ".join([label, *heading])
    return found


def _facts(file: Measured) -> dict[str, Any]:
    """What configurations may differ in: what a report's series do, and what divides its studies or is not said there."""
    own = {"threads": file.threads, "ranks-per-node": file.config.options.get("ranks-per-node")}
    return {**file.setup, **{name: file.config.model.get(name) for name in (*DIMENSIONS, "tied")}, **own}


def build(configuration: Configuration, lines: Mapping[Kind, Fit], binaries: Path) -> Model:
    """
    Raises:
        RunError: no file has events, so nothing is known of its operations.
    """
    observations = [file.local for file in configuration.files if file.local]
    if not observations:
        raise RunError("no file with events: what its operations cost is unknown; run it with --trace events")
    return Model(
        setup=configuration.setup,
        per_node=max(file.per_node for file in configuration.files),
        local=local_costs(observations),
        lines=lines,
        binaries=binaries,
    )


def with_residual(model: Model, configuration: Configuration) -> Model:
    """Widens the model's intervals by how far it misses the points that it was made from, at worst."""
    misses = [
        abs(log(model.predict(ranks).step_s / file.step_s))
        for ranks, file in configuration.measured.items()
        if file.local
    ]
    return replace(model, residual=max(misses, default=0.0))


def skill(
    configuration: Configuration, fits_below: Callable[[Place, int], Mapping[Kind, Fit]], model: Model
) -> Skill | None:
    """How the largest measured N is met by a model that has not seen it, where the rest allows one; else by `model`.

    `fits_below`: the fits of the files of a machine with fewer ranks. None where nothing was measured with more than one rank.
    """
    largest = max(configuration.measured, default=1)
    if largest == 1:
        return None
    truth = configuration.measured[largest]
    own = replace(configuration, files=tuple(file for file in configuration.files if file.ranks < largest))
    try:
        smaller = build(own, fits_below(configuration.place, largest), model.binaries)
        found, held_out = replace(smaller, per_node=model.per_node).predict(largest), True
    except RunError:
        found, held_out = model.predict(largest), False
    error = found.step_s / truth.step_s - 1.0
    without = found.without_communication_s / truth.step_s - 1.0
    value = 1.0 - abs(error) / abs(without) if abs(without) >= TELLING else None
    return Skill(value, error, largest, held_out)
