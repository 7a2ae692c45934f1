"""What a timeline shows of a run: some ranks and steps, on one time axis; and what its operations are called."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shardbench.clocks import Clocks
from shardbench.errors import RunError, UsageError, refuse_other_than_file
from shardbench.read import Header, TraceError, read_blocks, read_tables
from shardbench.stats import timed_steps

TIMED, LAST, ALL = "timed", "last", "all"
"""Choices of steps and ranks that need no number."""
Choice = str | Sequence[range]
"""`ALL`, of steps also `TIMED` and `LAST` (of the timed ones); or numbers."""

NANOSECONDS = 1e9
"""Nanoseconds in a second."""


@dataclass(frozen=True)
class Extract:
    """Some ranks and steps of one run.

    `ranks` and `steps` are rows of these tables. `base_s`, on rank 0's clock, is when the first of the steps
    begins on any of the ranks; times count from there.
    """

    path: Path
    header: Header
    ranks: pd.DataFrame
    steps: pd.DataFrame
    clocks: Clocks
    base_s: float

    def blocks(self, table: str) -> Iterator[pd.DataFrame]:
        """Yields the rows of these ranks in `events` or `memory`, in the file's order.

        Raises:
            TraceError: damage, perhaps only after the last block.
        """
        for block in read_blocks(self.path, table):
            yield block[block["rank"].isin(self.ranks["rank"])]

    def events(self) -> Iterator[pd.DataFrame]:
        """Yields the events of these ranks and steps, with `issue_ns`, `start_ns`, `end_ns` from the base on.

        Raises:
            TraceError: as for `blocks`, or times that cannot be.
        """
        steps = self.steps["step"].unique()
        for block in self.blocks("events"):
            block = block[block["step"].isin(steps)]
            times = {
                f"{name}_ns": self.nanoseconds(block["rank"], block[f"{name}_s"])
                for name in ("issue", "start", "end")
            }
            if (times["end_ns"] < times["start_ns"]).any():
                raise TraceError(self.path, ["an event ends before it begins: damaged; repeat the run"])
            yield block.assign(**times)

    def nanoseconds(self, rank: pd.Series, own_s: pd.Series) -> NDArray[np.int64]:
        """From the base on, of times that the ranks measured.

        Raises:
            TraceError: a time is no number.
        """
        since_s = self.clocks.common(rank, own_s) - self.base_s
        # Rounding keeps the order, so that events which touch still do and do not overlap.
        rounded: NDArray[np.float64] = np.rint(since_s * NANOSECONDS)
        if not (np.abs(rounded) < 2.0**62).all():
            raise TraceError(self.path, ["a time is not finite: damaged; repeat the run"])
        return rounded.astype(np.int64)

    @property
    def uncertainty_s(self) -> float:
        """How far times of two of the ranks may be apart wrongly: the largest uncertainty of any."""
        return float(self.clocks.uncertainty(self.ranks["rank"]).max())


def extract(path: Path, steps: Choice, ranks: Choice) -> Extract:
    """Reads what is needed before events are.

    Raises:
        UsageError: the file is not there or not a scenario's, or the choice is not in it.
        RunError: the file has no events.
        TraceError: as for `shardbench.read.read_trace`.
    """
    refuse_other_than_file(path)
    header, tables = read_tables(path, ("ranks", "clock", "steps"))
    _refuse_without_events(path, header)
    step_rows = tables["steps"]
    if step_rows.empty:
        raise RunError(f"{path} has no steps ({header.incomplete or 'none was run'}); repeat the run")
    chosen_ranks = _chosen_ranks(path, tables["ranks"], ranks)
    chosen_steps = _chosen_steps(path, step_rows, steps)
    if not chosen_ranks <= set(tables["clock"]["rank"]):
        raise RunError(f"{path} does not compare the clocks of these ranks: damaged; repeat the run")
    clocks = Clocks(tables["clock"])
    rank_rows = tables["ranks"][tables["ranks"]["rank"].isin(chosen_ranks)]
    step_rows = step_rows[step_rows["rank"].isin(chosen_ranks) & step_rows["step"].isin(chosen_steps)]
    if step_rows.empty:
        raise RunError(f"{path} has no such step of these ranks; choose others with --steps and --ranks")
    base_s = float(clocks.common(step_rows["rank"], step_rows["start_s"]).min())
    return Extract(path, header, rank_rows, step_rows, clocks, base_s)


def _refuse_without_events(path: Path, header: Header) -> None:
    scenario, level = header.attributes.scenario, header.config.options.get("trace", "events")
    if scenario == "collectives":
        raise UsageError(
            f"{path} is of the program collectives, which trains no steps; pass a scenario's file"
        )
    if level != "events":
        raise RunError(
            f"{path} has no events, because its run had --trace {level}; run it again with --trace events"
        )


def _chosen_ranks(path: Path, ranks: pd.DataFrame, choice: Choice) -> set[int]:
    there = set(ranks["rank"].tolist())
    return there if isinstance(choice, str) else _found(path, "rank", choice, there)


def _chosen_steps(path: Path, steps: pd.DataFrame, choice: Choice) -> set[int]:
    there = set(steps["step"].tolist())
    if not isinstance(choice, str):
        return _found(path, "step", choice, there)
    if choice == ALL:
        return there
    timed = set(timed_steps(steps)["step"].tolist())
    if not timed:
        raise UsageError(f"{path} has no timed step, only warm-up; pass --steps {ALL}")
    return {max(timed)} if choice == LAST else timed


def _found(path: Path, what: str, choice: Sequence[range], there: set[int]) -> set[int]:
    for wanted in choice:
        for number in (wanted[0], wanted[-1]):
            if number not in there:
                raise UsageError(f"{path} has no {what} {number}; it has {_spans(there)}")
    return {number for wanted in choice for number in wanted} & there


def _spans(values: Collection[int]) -> str:
    """'0–3, 7'."""
    spans: list[list[int]] = []
    for value in sorted(values):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in spans)


@dataclass(frozen=True)
class Names:
    """What the operations of a run are called, for people."""

    layers: int
    is_root_wrapped: bool
    has_two_communicators: bool

    @staticmethod
    def of(shown: Extract) -> "Names":
        """
        Raises:
            TraceError: the configuration does not say how many layers there are.
        """
        config = shown.header.config
        layers = config.model.get("layers")
        if not isinstance(layers, int):
            raise TraceError(shown.path, ["'config' does not say how many layers there are; repeat the run"])
        return Names(
            layers, config.options.get("wrap") == "root", str(config.options.get("communicators")) == "2"
        )

    def operation(self, kind: str, layer: int, bucket: int, axis: str, phase: str) -> str:
        """'block 3 forward', 'all_gather block 4', 'all_reduce tp block 1', 'copy_in bucket 0', 'optimizer'."""
        is_compute = kind == "compute"
        subject = self._subject(layer, bucket, is_compute)
        words = [
            "" if is_compute else kind,
            axis if axis in ("tp", "world") else "",
            subject,
            phase if is_compute or not subject else "",
        ]
        return " ".join(filter(None, words))

    def _subject(self, layer: int, bucket: int, is_compute: bool) -> str:
        if layer < 0:
            return f"bucket {bucket}" if bucket >= 0 else ""
        if layer == 0:
            return "root group" if self.is_root_wrapped and not is_compute else "embedding"
        return "head" if layer > self.layers else f"block {layer}"

    def queue(self, kind: str, axis: str) -> str:
        """The communicator that a collective goes through; one works in the order of issue."""
        if axis in ("tp", "world"):
            return f"comm {axis}"
        return "comm reduce_scatter" if self.has_two_communicators and kind == "reduce_scatter" else "comm"
