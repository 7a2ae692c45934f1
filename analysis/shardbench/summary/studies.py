"""Series → studies: what may be compared."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardbench.summary.launch import Launch
from shardbench.summary.series import Point, Series, series_of
from shardbench.summary.setups import Depth, prefetch_depth


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
        by_size: dict[int, dict[str, Point]] = defaultdict(dict)
        for series in self.series:
            for point in series.points:
                by_size[point.size][series.label] = point
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


@dataclass(frozen=True)
class PrefetchFamily:
    """Points by N and by prefetch depth, all else alike; both in numeric order."""

    scenario: str
    points: Mapping[int, Mapping[Depth, Point]]

    @property
    def depths(self) -> list[Depth]:
        """Every depth that occurs, in numeric order."""
        return sorted({depth for by_depth in self.points.values() for depth in by_depth})


def studies_of(launches: Iterable[Launch]) -> list[Study]:
    """Launches that may be compared with one another, together."""
    by_study: dict[tuple[Any, ...], list[Launch]] = defaultdict(list)
    for launch in launches:
        model = str(launch.config.options.get("model", "unnamed"))
        shape = json.dumps(launch.config.model, sort_keys=True)
        attributes = launch.attributes
        key = (attributes.simulated, attributes.compute, attributes.psi, model, shape)
        by_study[key].append(launch)
    return [
        Study(model, psi, bool(simulated), compute, series_of(members))
        for (simulated, compute, psi, model, _), members in sorted(by_study.items())
    ]
