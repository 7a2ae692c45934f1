"""Exactness of the statistics, against values worked out by hand or by brute force."""

from itertools import product

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
