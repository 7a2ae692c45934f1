"""Which points of two sets of runs belong together, and how they differ.

Points are paired where all that defines a step is the same: model, scenario, options, N, threads and, where simulated,
the machine. A difference is shown where the 95 % intervals of the two medians do not overlap; the interval of the ratio
is made of their ends (`stats.ratio_of_medians`) and excludes 1 in exactly these cases.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shardbench import stats
from shardbench.errors import UsageError
from shardbench.stats import Estimate, Ratio
from shardbench.summary.directory import Directory, read_directory
from shardbench.summary.launch import Launch
from shardbench.summary.series import Point, make_point
from shardbench.summary.setups import BESIDE_THE_STEP
from shardbench.summary.studies import studies_of
from shardbench.summary.usable import Excluded


class Verdict(StrEnum):
    """What B is against A."""

    FASTER = "faster"
    SLOWER = "slower"
    LESS = "less"
    MORE = "more"
    SAME = "same"
    NOT_SHOWN = "no difference shown"
    TOO_FEW = "too few samples"
    UNKNOWN = "not recorded"


class Samples(StrEnum):
    """What a pair's intervals are made of. Those of steps of one launch say nothing about the next launch."""

    LAUNCHES = "launches"
    STEPS = "steps"
    EXACT = "exact"


@dataclass(frozen=True)
class Time:
    """A time of both sides in seconds, with 95 % intervals where there are enough samples."""

    a: Estimate
    b: Estimate
    ratio: Ratio
    verdict: Verdict


@dataclass(frozen=True)
class Memory:
    """Peak tracked bytes of the rank that needs most.

    None where it is not recorded or only bounded from above, as files without the category total_tracked do.
    """

    a: float | None
    b: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Pair:
    """One point on both sides. `basis` says how many samples there are, `faults` what is wrong with B's results."""

    study: str
    label: str
    a: Point
    b: Point
    step: Time
    exposed: Time
    memory: Memory
    samples: Samples
    basis: str
    faults: tuple[str, ...]

    def regressions(self, threshold: float) -> list[str]:
        """Why B is worse; a slow-down of the median step by no more than `threshold` (0.05: 5 %) is no reason."""
        found = list(self.faults)
        if self.step.verdict is Verdict.SLOWER and self.step.b.median > (1 + threshold) * self.step.a.median:
            found.append("slower")
        if self.memory.verdict is Verdict.MORE:
            found.append("more memory")
        return found


@dataclass(frozen=True)
class Single:
    """A point that the other side does not have."""

    study: str
    label: str
    point: Point


@dataclass(frozen=True)
class Comparison:
    """All of two sets of runs. A is the base."""

    a: Directory
    b: Directory
    pairs: tuple[Pair, ...]
    only_a: tuple[Single, ...]
    only_b: tuple[Single, ...]

    @property
    def failed(self) -> list[Excluded]:
        """B's files whose run failed, be it in the check of its results or its ledger."""
        return [excluded for excluded in self.b.excluded if excluded.has_failed]

    def regressions(self, threshold: float) -> int:
        """How many of B's points and files are worse."""
        return sum(bool(pair.regressions(threshold)) for pair in self.pairs) + len(self.failed)


def compare(path_a: Path, path_b: Path) -> Comparison:
    """Pairs the points of two files or folders; A is the base.

    Raises:
        UsageError: there is nothing to read, or nothing that is on both sides.
    """
    a, b = read_directory(path_a), read_directory(path_b)
    own = {id(launch) for launch in a.launches}
    pairs: list[Pair] = []
    singles: dict[bool, list[Single]] = {True: [], False: []}
    for study, label, launches in _same_steps([*a.launches, *b.launches]):
        of_a = [launch for launch in launches if id(launch) in own]
        of_b = [launch for launch in launches if id(launch) not in own]
        if of_a and of_b:
            pairs.append(_pair(study, label, make_point(of_a), make_point(of_b)))
        else:
            singles[bool(of_a)].append(Single(study, label, make_point(launches)))
    found = Comparison(a, b, tuple(pairs), tuple(singles[True]), tuple(singles[False]))
    if not pairs and not found.failed:
        raise UsageError(_nothing_in_common(found))
    return found


def _nothing_in_common(found: Comparison) -> str:
    for side in (found.a, found.b):
        if not side.launches and side.bandwidths:
            return f"{side.name} has no scenario's file, only those of the program collectives, which has no steps to compare"
        if not side.launches:
            first = side.excluded[0]
            return f"no file of {side.name} can be used, {first.name} for one is left out: {first.reason}"
    return (
        f"{found.a.name} and {found.b.name} have no point in common: model, scenario, options, N and threads must be "
        "the same; shardbench report DIR lists them"
    )


def _same_steps(launches: Sequence[Launch]) -> Iterator[tuple[str, str, list[Launch]]]:
    """Study, label and launches of each point; what may differ along a series is told apart."""
    for study in studies_of(launches):
        for series in study.series:
            for point in series.points:
                variants: dict[tuple[str, ...], list[Launch]] = defaultdict(list)
                for launch in point.launches:
                    variants[_circumstances(launch)].append(launch)
                for key, members in sorted(variants.items()):
                    differing = [text for text in key if not all(text in other for other in variants)]
                    yield study.title, ", ".join([series.label, *differing]), members


def _circumstances(launch: Launch) -> tuple[str, ...]:
    """What a step's time also depends on, as text; machines of one name may have been described differently."""
    machine = {k: v for k, v in (launch.config.simulation or {}).get("machine", {}).items() if k != "ranks"}
    return (
        *(f"{option} {launch.config.options.get(option)}" for option in BESIDE_THE_STEP),
        f"threads {launch.threads}",
        f"machine {crc32(json.dumps(machine, sort_keys=True).encode()):08x}",
    )


def _pair(study: str, label: str, a: Point, b: Point) -> Pair:
    return Pair(
        study=study,
        label=label,
        a=a,
        b=b,
        step=_time(a, b, a.step_s, b.step_s, lambda launch: launch.step_s),
        exposed=_time(a, b, a.exposed_s, b.exposed_s, lambda launch: launch.exposed_s),
        memory=_memory(a, b),
        samples=_samples_are(a, b),
        basis=_basis(a, b),
        faults=tuple(_faults(b)),
    )


def _time(
    a: Point, b: Point, a_s: Estimate, b_s: Estimate, samples: Callable[[Launch], NDArray[np.float64]]
) -> Time:
    a_s, b_s = _with_all_launches(a, a_s, samples), _with_all_launches(b, b_s, samples)
    ratio = stats.ratio_of_medians(a_s, b_s)
    if a_s.low is None or a_s.high is None or b_s.low is None or b_s.high is None:
        return Time(a_s, b_s, ratio, Verdict.TOO_FEW)
    if b_s.low > a_s.high:
        return Time(a_s, b_s, ratio, Verdict.SLOWER)
    if b_s.high < a_s.low:
        return Time(a_s, b_s, ratio, Verdict.FASTER)
    is_same = _is_simulated(a) and (a_s.low, a_s.high) == (b_s.low, b_s.high)
    return Time(a_s, b_s, ratio, Verdict.SAME if is_same else Verdict.NOT_SHOWN)


def _with_all_launches(
    point: Point, estimate: Estimate, samples: Callable[[Launch], NDArray[np.float64]]
) -> Estimate:
    """The interval of few launches, widened to the medians of all; of simulations, which repeat exactly, these alone.

    An interval from the steps of one launch misses how launches differ. What two to five launches show of that must not
    be passed over.
    """
    if len(point.launches) >= stats.MINIMUM_SAMPLES and not _is_simulated(point):
        return estimate
    medians = [float(np.median(samples(launch))) for launch in point.launches]
    if _is_simulated(point):
        return Estimate(estimate.median, min(medians), max(medians), estimate.samples)
    if estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(
        estimate.median, min(*medians, estimate.low), max(*medians, estimate.high), estimate.samples
    )


def _is_simulated(point: Point) -> bool:
    return bool(point.typical.attributes.simulated)


def _samples_are(a: Point, b: Point) -> Samples:
    if _is_simulated(a):
        return Samples.EXACT
    is_enough = all(len(point.launches) >= stats.MINIMUM_SAMPLES for point in (a, b))
    return Samples.LAUNCHES if is_enough else Samples.STEPS


def _basis(a: Point, b: Point) -> str:
    if _is_simulated(a):
        return "simulated, exact"
    of_a, of_b = _basis_of(a), _basis_of(b)
    return of_a if of_a == of_b else f"A {of_a}; B {of_b}"


def _basis_of(point: Point) -> str:
    count = len(point.launches)
    is_widened = 1 < count < stats.MINIMUM_SAMPLES and point.step_s.low is not None
    return f"{point.basis} and {count} medians" if is_widened else point.basis


def _memory(a: Point, b: Point) -> Memory:
    peaks = [None if p.peak is None or p.peak.is_bound else p.peak.total for p in (a, b)]
    of_a, of_b = peaks
    if of_a is None or of_b is None:
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.MORE if of_b > of_a else Verdict.LESS if of_b < of_a else Verdict.SAME
    return Memory(of_a, of_b, verdict)


def _faults(point: Point) -> Iterator[str]:
    if any(launch.ledger.mismatches for launch in point.launches):
        yield f"ledger: {point.ledger_verdict}"
    if point.check == "failed":
        yield "check failed"


def provenance(side: Directory) -> Mapping[str, tuple[str, ...]]:
    """Which builds and libraries made a side's runs, and where."""
    facts: dict[str, set[str]] = defaultdict(set)
    for launch in side.launches:
        for name, value in _facts(launch):
            facts[name].add(value)
    return {name: tuple(sorted(values)) for name, values in facts.items()}


def _facts(launch: Launch) -> Iterator[tuple[str, Any]]:
    attributes = launch.attributes
    yield "commit", attributes.git_commit[:12] + (" (modified)" if attributes.git_dirty else "")
    yield "build", attributes.build_type
    yield "MPI", attributes.mpi_library
    yield "host", ", ".join(launch.hosts[:3]) + (
        f" and {len(launch.hosts) - 3} more" if launch.hosts[3:] else ""
    )
