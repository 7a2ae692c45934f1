"""Exactness of the statistics, against values worked out by hand or by brute force."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from shardbench import stats


@pytest.mark.parametrize(
    ("samples", "depth"),
    [(1, None), (5, None), (6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (50, 18), (100, 40)],
)
def test_interval_depth_matches_published_table(samples: int, depth: int | None) -> None:
    assert stats.interval_depth(samples) == depth


@pytest.mark.parametrize("samples", [6, 9, 12])
def test_interval_covers_the_median_in_95_percent_of_all_outcomes(samples: int) -> None:
    """Each sample falls below or above the true median: counts all 2^n outcomes."""
    depth = stats.interval_depth(samples)
    assert depth is not None

    def coverage(k: int) -> float:
        covered = sum(k <= sum(outcome) <= samples - k for outcome in product((0, 1), repeat=samples))
        return covered / 2**samples

    assert coverage(depth) >= 0.95 > coverage(depth + 1)


def test_median_and_interval_are_order_statistics() -> None:
    estimate = stats.estimate_median([7, 1, 10, 4, 2, 9, 3, 8, 6, 5])
    assert estimate == stats.Estimate(median=5.5, low=2.0, high=9.0, samples=10)


def test_five_samples_have_no_interval() -> None:
    assert stats.estimate_median([1, 2, 3, 4, 5]) == stats.Estimate(3.0, None, None, 5)


def test_large_sample_counts_are_exact_and_quick() -> None:
    # Normal approximation: 16383.5 - 1.96 * sqrt(32767) / 2 = 16206.1
    assert stats.interval_depth(32767) in range(16205, 16208)


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")]])
def test_median_refuses_what_has_none(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        stats.estimate_median(samples)


@pytest.fixture
def steps() -> pd.DataFrame:
    """Rank 1 is slow in step 1, rank 0 in step 2; step 0 is warm-up."""
    rows = [
        (0, 0, 1, 9.0, 9.0, 0.0, 0.0, 0.0, 8),
        (1, 0, 1, 9.0, 9.0, 0.0, 0.0, 0.0, 8),
        (0, 1, 0, 1.0, 0.5, 0.5, 0.0, 0.0, 8),
        (1, 1, 0, 2.0, 1.8, 0.1, 0.1, 0.0, 8),
        (0, 2, 0, 4.0, 3.0, 0.2, 0.3, 0.5, 8),
        (1, 2, 0, 3.0, 1.0, 2.0, 0.0, 0.0, 8),
    ]
    return pd.DataFrame(rows, columns=["rank", "step", "warmup", "step_s", *stats.PARTS, "tokens"])


def test_ranks_are_combined_by_the_maximum_without_warm_up(steps: pd.DataFrame) -> None:
    assert stats.maximum_over_ranks(steps, "step_s").tolist() == [2.0, 4.0]
    assert stats.maximum_over_ranks(steps, "exposed_s").tolist() == [0.5, 2.0]


def test_parts_are_those_of_the_slowest_rank(steps: pd.DataFrame) -> None:
    parts = stats.parts_of_slowest_rank(steps)
    assert parts["exposed_s"].tolist() == [0.1, 0.2]
    assert parts.sum(axis=1).tolist() == pytest.approx([2.0, 4.0])


def test_tokens_are_summed_over_ranks(steps: pd.DataFrame) -> None:
    assert stats.tokens_per_step(steps) == 16


def test_efficiency_is_throughput_per_rank_against_the_base() -> None:
    assert stats.scaling_efficiency(300.0, 4, 100.0, 1) == 0.75
    assert stats.scaling_efficiency(300.0, 8, 100.0, 2) == 0.75


def test_a_ratio_is_of_medians_and_its_interval_of_the_outer_ends() -> None:
    base, other = stats.Estimate(2.0, 1.0, 4.0, 9), stats.Estimate(3.0, 2.0, 5.0, 9)
    assert stats.ratio_of_medians(base, other) == stats.Ratio(1.5, 0.5, 5.0)
    assert stats.ratio_of_medians(base, stats.Estimate(3.0, None, None, 2)) == stats.Ratio(1.5, None, None)
    nothing = stats.Estimate(0.0, 0.0, 0.0, 9)
    assert stats.ratio_of_medians(nothing, base) == stats.Ratio(None, None, None)


@pytest.mark.parametrize(("spread", "least"), [(1.0, 0.99), (0.01, 0.95)])
@pytest.mark.parametrize("samples", [6, 9, 20])
def test_the_interval_of_a_ratio_covers_it(samples: int, spread: float, least: float) -> None:
    """Skewed times around medians 1 and 1.3; `spread` is that of the one side against the other's."""
    random = np.random.default_rng(1)
    tries = 4000
    depth = stats.interval_depth(samples)
    assert depth is not None
    a = np.sort(np.exp(0.3 * random.standard_normal((tries, samples))), axis=1)
    b = np.sort(1.3 * np.exp(0.3 * spread * random.standard_normal((tries, samples))), axis=1)
    low, high = b[:, depth - 1] / a[:, -depth], b[:, -depth] / a[:, depth - 1]
    # Three standard deviations of the count are allowed for.
    slack = 3 * (least * (1 - least) / tries) ** 0.5
    assert np.mean((low <= 1.3) & (1.3 <= high)) >= least - slack


def ranks_and_steps(rank_sd: float, step_sd: float, ranks: int = 400, steps: int = 40) -> pd.DataFrame:
    random = np.random.default_rng(7)
    time_s = (
        1 + rank_sd * random.standard_normal((ranks, 1)) + step_sd * random.standard_normal((ranks, steps))
    )
    rank, step = np.indices(time_s.shape)
    return pd.DataFrame(
        {"rank": rank.ravel(), "step": step.ravel(), "warmup": 0, "compute_s": time_s.ravel()}
    )


@pytest.mark.parametrize(("rank_sd", "step_sd"), [(0.1, 0.1), (0.2, 0.1), (0.05, 0.15), (0.1, 0.0)])
def test_rank_effect_is_the_share_of_variance_between_ranks(rank_sd: float, step_sd: float) -> None:
    effect = stats.rank_effect(ranks_and_steps(rank_sd, step_sd), "compute_s")
    assert effect == pytest.approx(rank_sd**2 / (rank_sd**2 + step_sd**2), abs=0.03)


def test_rank_effect_of_equal_ranks() -> None:
    assert stats.rank_effect(ranks_and_steps(0.0, 0.1), "compute_s") == pytest.approx(0.0, abs=0.01)
    assert stats.rank_effect(ranks_and_steps(0.0, 0.0), "compute_s") == 0.0


def test_rank_effect_is_not_moved_by_slow_steps() -> None:
    steps = ranks_and_steps(0.1, 0.1)
    expected = stats.rank_effect(steps, "compute_s")
    steps.loc[(steps["step"] < 4) & (steps["rank"] == 3), "compute_s"] = 100.0
    assert stats.rank_effect(steps, "compute_s") == pytest.approx(expected, abs=0.02)


def test_rank_effect_needs_ranks_and_steps() -> None:
    assert stats.rank_effect(ranks_and_steps(0.1, 0.1, ranks=1), "compute_s") is None
    assert stats.rank_effect(ranks_and_steps(0.1, 0.1, steps=5), "compute_s") is None
    warm = ranks_and_steps(0.1, 0.1, steps=10).assign(warmup=lambda rows: (rows["step"] < 5).astype(int))
    assert stats.rank_effect(warm, "compute_s") is None
