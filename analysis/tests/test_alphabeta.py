"""Fits of collectives whose alpha and beta are known."""

from dataclasses import replace

import numpy as np
import pytest

from shardbench.predict.alphabeta import (
    Fit,
    Group,
    Growth,
    Kind,
    Sample,
    fit,
    rounds,
    student,
    tree_steps,
    volume,
)

RING = Kind("all_gather", "ring", "any", "world", 1, spans_nodes=True)
NCCL = replace(RING, algorithm="nccl")
ALPHA, BETA, BASE = 7e-6, 2.5e-11, 2e-5
SIZES = [4**k for k in range(5, 15)]
GROUPS = [Group(n, n) for n in (2, 4, 8)]


def samples(
    kind: Kind, base: float = 0.0, noise: float = 0.0, growth: Growth = Growth.LINEAR
) -> list[Sample]:
    random = np.random.default_rng(3)
    found = []
    for group in GROUPS:
        for size in SIZES:
            exact = base + ALPHA * rounds(kind, group, growth) + BETA * volume(kind, group, size)
            found.append(Sample(group, size, exact * float(np.exp(noise * random.standard_normal()))))
    return found


def value(found: Fit, name: str) -> float:
    (line,) = found.lines
    coefficient = line.coefficient(name)
    assert coefficient is not None
    return coefficient.value


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize(("algorithm", "growth"), [("direct", Growth.LINEAR), ("ring", Growth.LINEAR),
                                                   ("doubling", Growth.LOGARITHMIC)])  # fmt: skip
def test_alpha_and_beta_are_recovered_to_rounding(collective: str, algorithm: str, growth: Growth) -> None:
    kind = replace(RING, collective=collective, algorithm=algorithm)
    found = fit(kind, samples(kind, growth=growth))
    assert value(found, "alpha") == pytest.approx(ALPHA, rel=1e-9)
    assert value(found, "beta") == pytest.approx(BETA, rel=1e-9)
    assert found.lines[0].r_squared == pytest.approx(1.0)
    assert found.lines[0].growth is growth


def test_with_noise_both_are_within_two_percent_and_their_intervals() -> None:
    found = fit(RING, samples(RING, base=BASE, noise=0.01))
    (line,) = found.lines
    for name, truth in {"base": BASE, "alpha": ALPHA, "beta": BETA}.items():
        coefficient = line.coefficient(name)
        assert coefficient is not None
        assert coefficient.low < truth < coefficient.high, name
        assert name == "base" or coefficient.value == pytest.approx(truth, rel=0.02)


def test_outliers_hardly_count() -> None:
    disturbed = samples(RING, noise=0.01)
    for index in (4, 13, 22):
        disturbed[index] = replace(disturbed[index], seconds=5 * disturbed[index].seconds)
    found = fit(RING, disturbed)
    assert found.line(Group(4, 4), SIZES[-1]).coefficient("beta").value == pytest.approx(BETA, rel=0.02)  # type: ignore[union-attr]


def test_what_scatters_says_little() -> None:
    truth = samples(RING)
    scattered = [Sample(Group(4, 4), size, 1e-2, spread=1e-2) for size in SIZES[:5]]
    found = fit(RING, truth + scattered)
    assert value(found, "beta") == pytest.approx(BETA, rel=0.02)


def test_one_group_and_one_size_cannot_tell_alpha_from_beta() -> None:
    (line,) = fit(RING, [Sample(Group(4, 4), 1000, 1e-3), Sample(Group(4, 4), 1000, 1.1e-3)]).lines
    assert line.coefficient("alpha") is None
    assert line.coefficient("beta") is not None


def test_a_base_needs_three_group_sizes() -> None:
    two = [s for s in samples(RING, base=BASE) if s.group.ranks < 8]
    assert all("base" not in line.terms for line in fit(RING, two).lines)


@pytest.mark.parametrize(
    ("algorithm", "sizes", "is_told"), [("nccl", 2, False), ("nccl", 3, True), ("ring", 2, True)]
)
def test_what_two_group_sizes_say_of_latency_ends_with_them(
    algorithm: str, sizes: int, is_told: bool
) -> None:
    kind = replace(RING, algorithm=algorithm)
    seen = GROUPS[:sizes]
    found = fit(kind, [sample for sample in samples(kind, base=BASE) if sample.group in seen])
    assert found.last_known(seen[-1]) is None
    assert found.last_known(Group(64, 64)) == (None if is_told else seen[-1])


def test_latency_cannot_exceed_what_small_messages_take() -> None:
    """A pair of ranks, and large messages whose times scatter: their intercept is noise."""
    pair = Group(2, 2)
    small = [Sample(pair, size, 1e-4) for size in (32_768, 33_280)]
    large = [Sample(pair, 853_000, t) for t in (0.023, 0.027)] + [
        Sample(pair, 3_478_000, t) for t in (0.081, 0.105)
    ]
    for line in fit(RING, small + large).lines:
        alpha = line.coefficient("alpha")
        assert alpha is None or alpha.high <= 4 * 1e-4


def test_a_library_that_takes_the_fastest_of_several_ways() -> None:
    """Three protocols: latency against bandwidth, as NCCL's. Beyond the fitted n the right one has to be chosen."""
    ways = [(5e-6, 1.5e-6, 1e-10), (1.2e-5, 2.2e-6, 2.9e-12), (3e-5, 4.7e-6, 2.66e-12)]

    def seconds(group: Group, size: int) -> float:
        return min(b + a * (group.ranks - 1) + beta * volume(NCCL, group, size) for b, a, beta in ways)

    groups = [Group(n, n // 8) for n in (16, 24, 32)]
    found = fit(NCCL, [Sample(g, s, seconds(g, s)) for g in groups for s in [4**k for k in range(4, 17)]])
    assert len(found.lines) == 3
    for ranks in (128, 512, 2048):
        group = Group(ranks, ranks // 8)
        for size in (10_000, 436_224_000, 1_050_672_128):
            line = found.line(group, size)
            assert float(line.seconds(group, size)) == pytest.approx(seconds(group, size), rel=0.01)


def test_ranges_of_size_where_the_protocol_changes() -> None:
    """Eager messages, and from 64 KiB on a rendezvous with more latency: no lowest line describes that."""

    def seconds(group: Group, size: int) -> float:
        late = 1.2e-5 if size >= 65_536 else 3e-6
        return late * (group.ranks - 1) + BETA * volume(RING, group, size)

    found = fit(RING, [Sample(group, size, seconds(group, size)) for group in GROUPS for size in SIZES])
    assert [line.smallest for line in found.lines] == [1024, 65_536]
    assert found.lines[1].coefficient("alpha").value == pytest.approx(1.2e-5, rel=1e-6)  # type: ignore[union-attr]
    assert float(found.line(Group(64, 64), 10**9).seconds(Group(64, 64), 10**9)) == pytest.approx(
        seconds(Group(64, 64), 10**9), rel=1e-6
    )


def test_volume_is_what_passes_the_slowest_link() -> None:
    """16 ranks on two nodes of 8: half of what a pairwise exchange sends stays in the node."""
    group = Group(16, 2)
    assert volume(replace(RING, algorithm="direct"), group, 1600) == 800
    assert volume(RING, group, 1600) == 1500
    assert volume(replace(RING, algorithm="hierarchical"), group, 1600) == 100
    assert volume(replace(RING, collective="all_reduce"), group, 1600) == 3000


def test_what_is_all_latency_is_not_seen_by_large_samples() -> None:
    group, far = Group(2, 2), Group(1024, 1024)
    large = fit(RING, [s for s in samples(RING) if s.size >= SIZES[-3]])
    assert large.is_seen(group, 10**12)
    assert not large.is_seen(far, SIZES[-3])
    assert fit(RING, samples(RING)).is_seen(far, 4)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_students_quantile(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=0.015)


def test_pat_has_a_time_for_each_rank_and_one_for_each_step() -> None:
    """Where nodes have one GPU; the figures are those of the platform `flat` but for a distinct step."""
    ways = {"ring": (5e-6, 2e-6, 0.0, 2e-10), "pat": (8e-6, 1e-6, 4e-6, 1.3e-10)}

    def seconds(group: Group, size: int) -> float:
        moved = volume(NCCL, group, size)
        return min(
            base + alpha * (group.ranks - 1) + step * tree_steps(group) + beta * moved
            for base, alpha, step, beta in ways.values()
        )

    groups = [Group(n, n) for n in (4, 8, 16, 24, 32)]
    found = fit(NCCL, [Sample(g, s, seconds(g, s)) for g in groups for s in [4**k for k in range(4, 13)]])
    (line,) = [line for line in found.lines if line.coefficient("steps")]
    steps = line.coefficient("steps")
    assert steps is not None and steps.value == pytest.approx(4e-6, rel=1e-3)
    for ranks in (128, 2048):
        group = Group(ranks, ranks)
        for size in (1000, 10_000_000):
            predicted = float(found.line(group, size).seconds(group, size))
            assert predicted == pytest.approx(seconds(group, size), rel=0.01)
