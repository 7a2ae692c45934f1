"""How much of the communication hid behind compute, or the reverse. Pure.

hidden fraction = (compute alone + communication alone − step) / the smaller of the two

1: the shorter one vanished behind the longer one. 0: one after the other. Negative: running both at once
slowed them down. The alone times of layers and buckets come from the rehearsal (table `calibration`);
how often each occurs in a step, and how large the collectives are, from the step's own events.

Two benchmarks of non-blocking collectives define an overlap of their own. From the same three times they give

IMB-NBC   100 · (communication alone + compute − step) / the smaller of the two, clipped to 0 … 100
          (Intel MPI Benchmarks User Guide, Measuring Communication and Computation Overlap)
OSU       100 · (1 − (step − compute) / communication alone), not below 0
          (OSU Micro-Benchmarks, calculate_and_print_stats of the non-blocking collectives)

Where compute is the longer one all three agree but for the clipping.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from shardbench import stats
from shardbench.stragglers import Unknown


@dataclass(frozen=True)
class Overlap:
    """Seconds of one step, and what they make.

    `layers_alone_s` is the part of `compute_alone_s` that is forward and backward, `layers_in_step_s` the
    compute of the step's slowest rank, with communication under way.
    """

    compute_alone_s: float
    communication_alone_s: float
    step_s: float
    layers_alone_s: float
    layers_in_step_s: float

    @property
    def hidden_fraction(self) -> float:
        """Not clipped: noise and interference can push it beyond 0 and 1."""
        alone_s = (self.compute_alone_s, self.communication_alone_s)
        return (sum(alone_s) - self.step_s) / min(alone_s)

    @property
    def imb_percent(self) -> float:
        """Overlap as IMB-NBC defines it, %."""
        return 100 * min(1.0, max(0.0, self.hidden_fraction))

    @property
    def osu_percent(self) -> float:
        """Overlap as the OSU micro-benchmarks define it, %; above 100 where the step is shorter than compute."""
        return max(0.0, 100 * (1 - (self.step_s - self.compute_alone_s) / self.communication_alone_s))

    @property
    def inflation(self) -> float | None:
        """How many times as long layers compute in the step as alone; None without calibrated compute."""
        return self.layers_in_step_s / self.layers_alone_s if self.layers_alone_s > 0 else None

    @property
    def compute_over_communication(self) -> float:
        """T_compute / T_comm, both alone: from 1 on there is enough compute to hide all communication."""
        return self.compute_alone_s / self.communication_alone_s


@dataclass(frozen=True)
class Rehearsal:
    """Seconds that one block computes alone, forward and backward."""

    forward_s: float
    backward_s: float


def block_rehearsal(calibration: pd.DataFrame) -> Rehearsal | Unknown:
    """From the table `calibration`, in which all blocks are one row for each direction."""
    blocks = calibration[calibration["kind"] == "block"].set_index("direction")["compute_alone_s"]
    if not {"forward", "backward"} <= set(blocks.index):
        return Unknown("not recorded")
    return Rehearsal(float(blocks["forward"]), float(blocks["backward"]))


def overlap(
    calibration: pd.DataFrame, steps: pd.DataFrame, events: pd.DataFrame, layers: int
) -> Overlap | Unknown:
    """The alone times of a step and its median duration; the arguments are tables of a trace.

    `layers` is the number of blocks L: layer 0 is the embedding, L+1 the head.

    - A layer's compute: the calibrated time for each micro-batch and layer that the step has.
    - Collectives: the calibrated time, scaled by the elements of all that the step has against the
      elements of the median one, which the calibration stands for. Exact where all are equally large.
    - The rehearsal has no optimizer phase, and nothing overlaps there: optimizer and other parts count as
      compute alone, that phase's waits as communication alone, with the time that they took in the step.
    """
    if calibration.empty or events.empty:
        return Unknown("not recorded")
    timed = stats.timed_steps(steps)
    last, rank = timed["step"].max(), timed["rank"].min()
    step = events[(events["step"] == last) & (events["rank"] == rank)]
    alone_s = {"compute": 0.0, "comm": 0.0}
    times = calibration.set_index(["kind", "direction"])[["compute_alone_s", "communication_alone_s"]]
    calibrated = dict(zip(times.index, times.to_numpy().tolist()))
    trained = step[step["phase"] != "optimizer"]
    trained = trained.assign(of=_kinds(trained, layers))
    where, subjects = ["of", "phase"], ["micro", "layer", "bucket"]
    computed = trained[trained["kind"] == "compute"].drop_duplicates([*where, *subjects])
    computations = computed.groupby(where).size().to_dict()
    sizes = trained[trained["stream"] == "comm"].groupby([*where, *subjects])["elements"].sum()
    collectives = sizes.groupby(level=where).agg(["sum", "median"])
    scales = (collectives["sum"] / collectives["median"]).to_dict()
    for key in sorted(computations.keys() | scales.keys()):
        if key not in calibrated:
            return Unknown(f"no calibration of {' '.join(key)}")
        compute_s, communication_s = calibrated[key]
        alone_s["compute"] += computations.get(key, 0) * compute_s
        alone_s["comm"] += scales.get(key, 0.0) * communication_s
    parts_s = stats.parts_of_slowest_rank(steps)
    compute_s = alone_s["compute"] + float((parts_s["optimizer_s"] + parts_s["other_s"]).median())
    communication_s = alone_s["comm"] + _optimizer_waits(events, timed)
    if min(compute_s, communication_s) <= 0:
        return Unknown("nothing to overlap")
    step_s = float(np.median(stats.maximum_over_ranks(steps, "step_s")))
    return Overlap(
        compute_s, communication_s, step_s, alone_s["compute"], float(parts_s["compute_s"].median())
    )


def _kinds(events: pd.DataFrame, layers: int) -> Any:
    """The calibration's kind of each event."""
    layer = events["layer"]
    conditions = [layer == 0, layer == layers + 1, layer > 0]
    return np.select(conditions, ["embedding", "head", "block"], "bucket")


def _optimizer_waits(events: pd.DataFrame, timed: pd.DataFrame) -> float:
    """Seconds that the slowest rank of a step waited in the optimizer phase; the median over steps."""
    waits = events[(events["kind"] == "wait") & (events["phase"] == "optimizer")]
    each_s = (waits["end_s"] - waits["start_s"]).groupby([waits["step"], waits["rank"]]).sum()
    slowest = timed.loc[timed.groupby("step")["step_s"].idxmax(), ["step", "rank"]]
    return float(each_s.reindex(pd.MultiIndex.from_frame(slowest), fill_value=0.0).median())
