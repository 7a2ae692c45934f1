"""alpha and beta of collectives, by robust regression. Pure.

The model (Hockney's, with the rounds that an algorithm takes; reference: src/comm/schedule.hpp):

    seconds = base + alpha * rounds + beta * volume

`rounds` follow from algorithm and group; `volume` are the bytes that have to pass a rank's slowest link. Where nodes hold
several ranks and the group spans nodes, that link is the network's, and what stays in a node does not count. A term is
only there where the data can tell it from the others; what they cannot tell is left out and said.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from itertools import combinations
from math import ceil, hypot, inf, log, log2, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from shardbench import stats

PASSES = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""An all-reduce is a reduce-scatter and an all-gather: twice the rounds and the volume."""

LOCAL = "local"
"""The algorithm of a group of one: a copy, no communication."""

OPAQUE = ("nccl", "native", "coarse")
"""Algorithms that choose for themselves: whether their rounds grow with n or its logarithm is asked of the data."""

HUBER = 1.345
"""Residuals beyond so many standard deviations count less: 95 % efficiency for normal errors (Huber, Robust Statistics)."""

TUNED = ("nccl",)
"""Algorithms that choose among ways, each about a line, the one that they expect to be fastest."""

MOST_LINES = 4
"""Of a kind; the cost of looking for them grows with each."""

FEWEST = 4
"""Samples of a line where there are several: one more than it may have terms, so that they can contradict it."""

ALL_LATENCY = 0.9
"""A sample with this part of latency shows what small sizes cost."""

HANDSHAKE = 4
"""Messages one after another: a request, its answer, the data, and the news that they have arrived."""

LIKELY = 0.01
"""Systematic relative deviation from a line that nobody would wonder at."""

STARTS = 8
"""Into so many parts the samples are cut where a search for lines starts."""

ITERATIONS = 50
"""Most rounds of reassigning or reweighting; both settle in far fewer."""

FEWEST_GROUPS = 3
"""So many sizes of groups tell a base from an alpha and show whether both are right. A tree's rounds follow fewer sizes; two do."""

MODELS = (("base", "alpha", "beta"), ("alpha", "beta"), ("base", "beta"), ("beta",))
"""Which terms may be there, most first."""

WITH_STEPS = (("base", "alpha", "steps", "beta"), *MODELS)
"""The same for `Growth.PAT`."""

DEGENERATE = 1e7
"""From this condition number on, columns are multiples of one another but for rounding."""

EXACT = 1e-7
"""Residuals of simulations, in tolerances, are rounding; smaller ones say nothing about which model is better."""


class Growth(Enum):
    """How the number of rounds grows with the group."""

    LINEAR = "n-1"
    LOGARITHMIC = "log2 n"
    NODES = "m-1"
    TREE = "log2 m"
    PAT = "n-1 and log2 m"
    """NCCL's parallel aggregated trees, where nodes have one GPU: a time for each rank, and one for each step of the trees."""


@dataclass(frozen=True)
class Group:
    """Ranks of a collective, and over how many nodes they are spread."""

    ranks: int
    nodes: int

    @property
    def per_node(self) -> int:
        """Ranks of the fullest node."""
        return ceil(self.ranks / self.nodes)


@dataclass(frozen=True)
class Kind:
    """What shares its alpha and beta.

    `axis` and `stride`: the distance of a group's neighbours in the world, tp for axis dp. It decides how many groups use a
    node's network at once.
    """

    collective: str
    algorithm: str
    dtype: str
    axis: str
    stride: int
    spans_nodes: bool

    @property
    def where(self) -> str:
        """Which ranks communicate, and over which links."""
        return f"{self.axis}, {'between nodes' if self.spans_nodes else 'in a node'}"

    def __str__(self) -> str:
        return f"{self.collective} {self.algorithm} {self.dtype}, {self.where}"


@dataclass(frozen=True)
class Sample:
    """One collective as measured: its group, size S in bytes (nccl-tests' definition), seconds.

    `spread`: the standard deviation of what it is the median of, seconds.
    """

    group: Group
    size: int
    seconds: float
    spread: float = 0.0

    @property
    def tolerance(self) -> float:
        """Seconds by which a line may miss it; what scatters much says little."""
        return hypot(LIKELY * self.seconds, self.spread)


@dataclass(frozen=True)
class Coefficient:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Line:
    """A fitted line over the sizes from `smallest` to `largest`, bytes.

    `square`: sum of squared residuals, in tolerances. `longest`: what alpha cannot exceed, seconds.

    `terms` names the coefficients that the data could tell apart, in order: base (s), alpha (s a round), beta (s a byte).
    `information` is the inverse of their covariance.
    """

    kind: Kind
    growth: Growth
    smallest: int
    largest: int
    terms: tuple[str, ...]
    values: NDArray[np.float64]
    information: NDArray[np.float64]
    freedom: int
    r_squared: float
    worst_residual: float
    square: float
    longest: float
    samples: int
    groups: tuple[int, ...]

    @cached_property
    def covariance(self) -> NDArray[np.float64]:
        """Of the coefficients."""
        scale = np.sqrt(np.diag(self.information))
        return np.asarray(np.linalg.inv(self.information / np.outer(scale, scale)) / np.outer(scale, scale))

    def coefficient(self, name: str) -> Coefficient | None:
        """None where the data could not tell it."""
        if name not in self.terms:
            return None
        i = self.terms.index(name)
        reach = student(self.freedom) * sqrt(max(self.covariance[i, i], 0.0))
        value = float(self.values[i])
        return Coefficient(value, max(value - reach, 0.0), min(value + reach, self._limit(name)))

    def _limit(self, name: str) -> float:
        return self.longest if name == "alpha" else inf

    def seconds(
        self, group: Group, size: int, values: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """For one or many sets of coefficients (last axis: terms)."""
        features = _features(self.kind, self.growth, [Sample(group, size, 0.0)])
        chosen = np.array([features[name][0] for name in self.terms])
        return np.asarray((self.values if values is None else values) @ chosen)

    @property
    def counted(self) -> Growth:
        """What alpha's rounds grow with; a line of PAT without steps is one of rounds for each rank alone."""
        return Growth.LINEAR if self.growth is Growth.PAT and "steps" not in self.terms else self.growth

    @property
    def is_beta(self) -> NDArray[np.float64]:
        """1 for beta, 0 for the other terms."""
        return np.array([float(name == "beta") for name in self.terms])

    def draws(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Sets of coefficients that the data allow."""
        drawn = random.multivariate_normal(self.values, self.covariance, count, check_valid="ignore")
        return np.clip(drawn, 0.0, [self._limit(name) for name in self.terms])


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t.

    Cornish and Fisher's expansion (Abramowitz and Stegun, 26.7.5); 1 % short at 3 degrees of freedom, exact where many.
    """
    z, v = NormalDist().inv_cdf(0.975), max(freedom, 1)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def rounds(kind: Kind, group: Group, growth: Growth) -> float:
    """Message latencies that follow one another."""
    n = group.ranks
    once = {
        Growth.LINEAR: n - 1,
        Growth.LOGARITHMIC: log2(n) if kind.algorithm in OPAQUE else ceil(log2(n)),
        Growth.NODES: group.nodes - 1,
        Growth.TREE: tree_steps(group),
        Growth.PAT: n - 1,
    }[growth]
    return float(PASSES[kind.collective] * once)


def tree_steps(group: Group) -> int:
    """log2 of the nodes, rounded down, as NCCL's tuner counts (src/comm/nccl_model.cpp)."""
    return int(log2(group.nodes))


def volume(kind: Kind, group: Group, size: int) -> float:
    """Bytes that pass a rank's slowest link."""
    n, g, m = group.ranks, group.per_node, group.nodes
    share = (n - 1) / n
    if kind.spans_nodes and kind.algorithm in ("direct", "doubling"):
        share = (n - g) / n
    elif kind.spans_nodes and kind.algorithm == "hierarchical":
        share = (m - 1) / n
    return PASSES[kind.collective] * share * size


def fit(kind: Kind, samples: Sequence[Sample]) -> "Fit":
    """The lines of a kind: as many as the data speak for (Schwarz's criterion).

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("a fit needs samples")
    longest = _longest_latency(kind, samples)
    whole = [_best_line(kind, samples, longest)]
    divide = _envelope if kind.algorithm in TUNED else _ranges
    partitions = [divide(kind, samples, count, longest) for count in range(2, MOST_LINES + 1)]
    fits = [Fit(kind, tuple(lines), tuple(samples)) for lines in (whole, *partitions) if lines]
    return min(fits, key=lambda found: _criterion(found.lines))


def _longest_latency(kind: Kind, samples: Sequence[Sample]) -> float:
    """An upper bound of alpha, seconds: what nothing but noise could exceed.

    The fastest sample shows how long a round takes at most. Large messages may need a handshake, so several in a row. What
    chooses among ways may choose one of long latency for large sizes; there is no such bound.
    """
    if kind.algorithm in OPAQUE:
        return inf
    growth = _growths(kind, ())[0]
    return HANDSHAKE * min(s.seconds / max(rounds(kind, s.group, growth), 1.0) for s in samples)


def _ranges(kind: Kind, samples: Sequence[Sample], count: int, longest: float) -> list[Line]:
    """Sizes cut into `count` ranges, so that the lines miss as little as possible; empty where there are too few."""
    sizes = sorted({sample.size for sample in samples})

    @cache
    def line(first: int, last: int) -> Line | None:
        members = [s for s in samples if sizes[first] <= s.size <= sizes[last - 1]]
        return _best_line(kind, members, longest) if len(members) >= FEWEST else None

    best: list[Line] = []
    for cuts in combinations(range(1, len(sizes)), count - 1):
        edges = [0, *cuts, len(sizes)]
        lines = [line(first, last) for first, last in zip(edges, edges[1:])]
        complete = [found for found in lines if found]
        if len(complete) == count and (not best or _missed(complete) < _missed(best)):
            best = complete
    return best


def _envelope(kind: Kind, samples: Sequence[Sample], count: int, longest: float) -> list[Line]:
    """`count` lines of which each sample is on the lowest: what a library does that chooses the fastest way by such lines.

    Each sample goes to its lowest line, each line is fitted to its samples, until nothing changes (Magnani and Boyd,
    Convex piecewise-linear fitting, 2009, with minima for maxima). Where it starts matters, so it starts from many cuts of
    the samples in order of size per rank. Empty where there are too few.
    """
    ordered = sorted(samples, key=lambda sample: sample.size / sample.group.ranks)
    step = max(1, len(ordered) // STARTS)
    starts = [
        np.searchsorted(cuts, np.arange(len(ordered)), "right")
        for cuts in combinations(range(step, len(ordered), step), count - 1)
    ]
    best: list[Line] = []
    for growths in _mixtures(kind, ordered, count):
        for owner in _settled(kind, ordered, growths, starts):
            members = [[s for s, own in zip(ordered, owner) if own == i] for i in range(count)]
            lines = [_best_line(kind, part, longest, (growth,)) for part, growth in zip(members, growths)]
            if not best or _missed(lines) < _missed(best):
                best = lines
    return best


def _mixtures(kind: Kind, samples: Sequence[Sample], count: int) -> list[tuple[Growth, ...]]:
    """How each line's rounds grow: what grows least is for the smallest sizes."""
    growths = _growths(kind, {sample.group for sample in samples})
    return [
        growths[1:] * trees + growths[:1] * (count - trees)
        for trees in range(count + 1 if growths[1:] else 1)
    ]


def _settled(
    kind: Kind, samples: Sequence[Sample], growths: Sequence[Growth], starts: Sequence[NDArray[np.intp]]
) -> list[NDArray[np.intp]]:
    """Which line each sample ends at, of each start; none where a line keeps too few. Plain least squares, which will do for
    sorting."""
    tolerance = np.array([sample.tolerance for sample in samples])
    target = np.array([sample.seconds for sample in samples]) / tolerance
    designs = [
        np.column_stack(list(_features(kind, g, samples).values())) / tolerance[:, None] for g in growths
    ]
    found: dict[bytes, NDArray[np.intp]] = {}
    for owner in starts:
        for _ in range(ITERATIONS):
            if min(np.bincount(owner, minlength=len(growths))) < FEWEST:
                break
            fitted = [
                design @ np.linalg.lstsq(design[owner == i], target[owner == i], rcond=None)[0]
                for i, design in enumerate(designs)
            ]
            lowest = np.argmin(fitted, axis=0)
            if (lowest == owner).all():
                found[owner.tobytes()] = owner
                break
            owner = lowest
    return list(found.values())


def _missed(lines: Sequence[Line]) -> float:
    return sum(line.square for line in lines)


def _lowest(lines: Sequence[Line], group: Group, size: int) -> Line:
    return min(lines, key=lambda line: float(line.seconds(group, size)))


@dataclass(frozen=True)
class Fit:
    """The lines of a kind, and the samples that they are made from."""

    kind: Kind
    lines: tuple[Line, ...]
    samples: tuple[Sample, ...]

    def line(self, group: Group, size: int) -> Line:
        """The one that holds for a group and a size: the lowest where the library chooses, else that of the size."""
        if self.kind.algorithm in TUNED:
            return _lowest(self.lines, group, size)
        return min(self.lines, key=lambda line: max(line.smallest - size, size - line.largest, 0))

    def last_known(self, group: Group) -> Group | None:
        """The largest group of the samples, where they do not tell whether latency grows from it to `group`; else None.

        Few sizes of groups do not tell what grows with them from what does not. Where rounds are known, all grows.
        """
        sizes = {sample.group.ranks: sample.group for sample in self.samples}
        largest = sizes[max(sizes)]
        is_told = self.kind.algorithm not in OPAQUE or len(sizes) >= FEWEST_GROUPS
        return None if is_told or group.ranks <= largest.ranks else largest

    def latency_share(self, group: Group, size: int) -> float:
        """Of the fitted time: what does not depend on the size."""
        line = self.line(group, size)
        return 1.0 - float(line.seconds(group, size, line.values * line.is_beta) / line.seconds(group, size))

    def is_seen(self, group: Group, size: int) -> bool:
        """Whether samples have as large a part of latency. Where they have not, a library may have another way that no sample shows."""
        largest = max(self.latency_share(sample.group, sample.size) for sample in self.samples)
        return largest >= ALL_LATENCY or self.latency_share(group, size) <= largest


def _best_line(
    kind: Kind, samples: Sequence[Sample], longest: float, growths: tuple[Growth, ...] = ()
) -> Line:
    """Of the models that the data can tell apart, the one with the least Bayesian information criterion.

    alpha is kept wherever it can be told, however small: it decides what happens at large n. A base that does not earn its
    place is not.
    """
    candidates = []
    for growth in growths or _growths(kind, {sample.group for sample in samples}):
        models = WITH_STEPS if growth is Growth.PAT else MODELS
        lines = [_line(kind, growth, samples, terms, longest) for terms in models]
        with_alpha = [line for line in lines if line and "alpha" in line.terms]
        candidates += with_alpha or [line for line in lines if line][:1]
    return min(candidates, key=lambda line: _criterion([line]))


def _growths(kind: Kind, groups: Collection[Group]) -> tuple[Growth, ...]:
    sizes = len({group.ranks for group in groups})
    if kind.algorithm == "doubling":
        return (Growth.LOGARITHMIC,)
    if kind.algorithm == "hierarchical" and kind.spans_nodes:
        return (Growth.NODES,)
    if kind.algorithm in TUNED:
        if kind.collective == "all_reduce":
            return (Growth.LINEAR, Growth.TREE) if kind.spans_nodes and sizes > 1 else (Growth.LINEAR,)
        has_pat = sizes > FEWEST_GROUPS and all(group.nodes == group.ranks for group in groups)
        return (Growth.LINEAR, Growth.PAT) if has_pat else (Growth.LINEAR,)
    if kind.algorithm in OPAQUE and sizes > 1:
        return (Growth.LINEAR, Growth.LOGARITHMIC)
    return (Growth.LINEAR,)


def _features(kind: Kind, growth: Growth, samples: Sequence[Sample]) -> dict[str, NDArray[np.float64]]:
    steps = {"steps": np.array([float(tree_steps(s.group)) for s in samples])} if growth is Growth.PAT else {}
    return steps | {
        "base": np.ones(len(samples)),
        "alpha": np.array([rounds(kind, sample.group, growth) for sample in samples]),
        "beta": np.array([volume(kind, sample.group, sample.size) for sample in samples]),
    }


def _line(
    kind: Kind, growth: Growth, samples: Sequence[Sample], terms: tuple[str, ...], longest: float
) -> Line | None:
    """None where the terms cannot be told apart, or one would be negative. alpha is at most `longest`, seconds."""
    features = _features(kind, growth, samples)
    fewest = 2 if growth is Growth.TREE else FEWEST_GROUPS
    if len(samples) < len(terms) or ("base" in terms and len(set(features["alpha"])) < fewest):
        return None
    seconds = np.array([sample.seconds for sample in samples])
    tolerance = np.array([sample.tolerance for sample in samples])
    design = np.column_stack([features[name] for name in terms]) / tolerance[:, None]
    scale = np.abs(design).max(axis=0)
    if not scale.all() or np.linalg.cond(design / scale) > DEGENERATE:
        return None
    values, weights = _huber(design / scale, seconds / tolerance)
    if "alpha" in terms and values[terms.index("alpha")] > longest * scale[terms.index("alpha")]:
        values, weights = _with_fixed(terms.index("alpha"), longest, design, scale, seconds / tolerance)
    if (values < 0).any():
        return None
    freedom = len(samples) - len(terms)
    missed = seconds - tolerance * ((design / scale) @ values)
    square = float(np.sum(weights * (missed / tolerance) ** 2))
    # Without a sample to spare, tolerances have to do for residuals.
    variance = max(square / freedom, EXACT**2) if freedom else 1.0
    total = float(np.sum((seconds - seconds.mean()) ** 2))
    sizes = [sample.size for sample in samples]
    return Line(
        kind=kind,
        growth=growth,
        smallest=min(sizes),
        largest=max(sizes),
        terms=terms,
        values=values / scale,
        information=design.T @ (design * weights[:, None]) / variance,
        freedom=freedom,
        r_squared=1.0 - float(missed @ missed) / total if total else 1.0,
        worst_residual=float(np.abs(missed / seconds).max()),
        square=float(np.sum((missed / tolerance) ** 2)),
        longest=longest,
        samples=len(samples),
        groups=tuple(sorted({sample.group.ranks for sample in samples})),
    )


def _with_fixed(
    term: int,
    value: float,
    design: NDArray[np.float64],
    scale: NDArray[np.float64],
    target: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`_huber` where one term is known."""
    others = np.delete(design / scale, term, axis=1)
    found, weights = _huber(others, target - value * design[:, term])
    return np.insert(found, term, value * scale[term]), weights


def _huber(
    design: NDArray[np.float64], target: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Solves design @ x = target, outliers weighted down; x and the weights of the rows."""
    weights = np.ones(len(design))
    values = np.zeros(design.shape[1])
    for _ in range(ITERATIONS):
        root = np.sqrt(weights)
        found = np.linalg.lstsq(design * root[:, None], target * root, rcond=None)[0]
        residuals = np.abs(target - design @ found)
        deviation = stats.DEVIATIONS_PER_MAD * float(np.median(residuals))
        weights = np.minimum(1.0, HUBER * max(deviation, EXACT) / np.maximum(residuals, EXACT))
        if np.allclose(found, values, rtol=1e-10, atol=0.0):
            break
        values = found
    return found, weights


def _criterion(lines: Sequence[Line]) -> float:
    """Schwarz's, of residuals in tolerances; a line has its growth and its terms to choose."""
    samples = sum(line.samples for line in lines)
    variance = _missed(lines) / samples + EXACT**2
    return samples * log(variance) + sum(len(line.terms) + 1 for line in lines) * log(samples)
