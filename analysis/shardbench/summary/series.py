"""Launches → points, and points → series over N."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardbench import stats
from shardbench.stats import Estimate
from shardbench.summary.launch import Launch, Peak
from shardbench.summary.setups import labels
from shardbench.units import plural

SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")
"""The order in which scenarios are listed: from nothing sharded to everything."""


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


def series_of(launches: Iterable[Launch]) -> tuple[Series, ...]:
    """The series of one study, in the order in which they are listed."""
    by_setup: dict[tuple[str, str], list[Launch]] = defaultdict(list)
    for launch in launches:
        setup = json.dumps(launch.setup(), sort_keys=True)
        by_setup[launch.attributes.scenario, setup].append(launch)
    named = labels([(scenario, json.loads(setup)) for scenario, setup in by_setup])
    series = [
        Series(scenario, label, _points(members), members[0].is_strong)
        for label, ((scenario, _), members) in zip(named, by_setup.items())
    ]
    return tuple(sorted(series, key=lambda s: (_scenario_order(s.scenario), s.label)))


def _scenario_order(scenario: str) -> tuple[int, str]:
    known = scenario in SCENARIOS
    return (SCENARIOS.index(scenario) if known else len(SCENARIOS), scenario)


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
