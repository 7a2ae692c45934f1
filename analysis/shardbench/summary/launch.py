"""A file's figures: times, memory, volume, waits of one launch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shardbench import stats
from shardbench.onestep import OneStep, one_step
from shardbench.overlap import Overlap, Rehearsal, block_rehearsal, overlap
from shardbench.read import SAMPLED, Attributes, Config, Trace
from shardbench.stragglers import Unknown, Waits, split_waits
from shardbench.summary import setups
from shardbench.units import exact
from shardbench.validate import ledger_mismatches

STATIC_CATEGORIES = ("parameters", "gradients", "optimizer")


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
        return setups.is_strong(self.config)

    def setup(self) -> dict[str, Any]:
        """Everything but scenario, model and N that sets one series apart from another."""
        return setups.setup(self.attributes, self.config)

    @property
    def platform(self) -> str | None:
        """The simulated machine; None for real runs and unnamed machines."""
        return setups.platform(self.config)


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
    peaks = table.groupby(["rank", "category"])["peak_bytes"].max().unstack(fill_value=0)
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
