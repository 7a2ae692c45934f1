"""What schema version 1 promises, and how it is called here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd  # and where tables are made: reading a header shall not wait for it

SCHEMA = "shardbench"
SCHEMA_VERSION = 1


class Kind(Enum):
    """What a column may hold; the exact width is the writer's choice."""

    INTEGER = "an integer"
    REAL = "a floating-point number"
    NUMBER = "a number"
    TEXT = "a UTF-8 string"
    LABEL = "an integer or a UTF-8 string"


def _columns(**names_by_kind: str) -> dict[str, Kind]:
    return {name: Kind[kind.upper()] for kind, names in names_by_kind.items() for name in names.split()}


SAMPLED = ("process_", "device_")
"""How memory's categories begin that are samples, not tracked bytes."""

TABLES: Mapping[str, Mapping[str, Kind]] = {
    "ranks": _columns(
        integer="rank dp_index tp_index local_rank pid threads allowed_cpus",
        text="host",
        label="affinity device",
    ),
    "clock": _columns(integer="rank", real="at_s offset_s uncertainty_s"),
    "steps": _columns(
        integer="rank step warmup tokens",
        real="start_s step_s compute_s exposed_s exposed_ag_forward_s exposed_ag_backward_s"
        " exposed_rs_s exposed_ar_s optimizer_s other_s loss grad_norm",
    ),
    "events": _columns(
        integer="rank step micro layer bucket group_size elements bytes sent_bytes",
        text="phase kind stream axis algorithm dtype",
        real="issue_s start_s end_s wait_s",
    ),
    "memory": _columns(integer="rank step bytes", real="at_s", text="category"),
    "memory_peak": _columns(integer="rank peak_bytes", text="category"),
    "ledger": _columns(integer="rank", text="axis quantity unit", number="expected measured padding"),
    "tensors": _columns(integer="index elements", text="name", real="sum sum_of_squares"),
    "calibration": _columns(
        integer="layer", text="kind direction", real="compute_alone_s communication_alone_s"
    ),
}

OPTIONAL_TABLES: Mapping[str, Mapping[str, Kind]] = {
    "collectives": _columns(
        integer="rank line size_bytes count repetition warmup sent_bytes wrong window",
        text="collective algorithm dtype reduction stop",
        real="start_s end_s",
    ),
}
"""Tables that only some programs write; read as empty where they are absent."""

ALL_TABLES: Mapping[str, Mapping[str, Kind]] = {**TABLES, **OPTIONAL_TABLES}


@dataclass(frozen=True)
class Attributes:
    """The root attributes, named as in the file."""

    schema: str
    schema_version: int
    scenario: str
    status: str
    world_size: int
    dp: int
    tp: int
    psi: int
    backend: str
    compute: str
    payload: str
    simulated: int
    git_commit: str
    git_dirty: int
    build_type: str
    created_utc: str
    command_line: str
    mpi_library: str
    hdf5_version: str
    nccl_version: str
    seed: int
    oversubscribed: int
    launch_id: str
    steady: int
    check: str = "off"
    timer_overhead_s: float = nan
    timer_resolution_s: float = nan


@dataclass(frozen=True)
class Config:
    """The effective configuration: options by long name without dashes, and what they led to.

    `simulation` says which machine was simulated; None for real runs and unknown machines.
    """

    options: dict[str, Any]
    model: dict[str, Any]
    environment: dict[str, Any]
    wait_policy: str
    simulation: dict[str, Any] | None = None


@dataclass(frozen=True)
class Header:
    """What a file says about its run, without its tables."""

    attributes: Attributes
    config: Config

    @property
    def incomplete(self) -> str | None:
        """Why the run's numbers must not be used, or None for a complete run."""
        return incomplete(self.attributes.status)


@dataclass(frozen=True)
class Trace:
    """One file: its attributes, its configuration and its tables (columns as in `TABLES`)."""

    path: Path
    attributes: Attributes
    config: Config
    ranks: "pd.DataFrame"
    clock: "pd.DataFrame"
    steps: "pd.DataFrame"
    events: "pd.DataFrame"
    memory: "pd.DataFrame"
    memory_peak: "pd.DataFrame"
    ledger: "pd.DataFrame"
    tensors: "pd.DataFrame"
    calibration: "pd.DataFrame"
    collectives: "pd.DataFrame"

    @property
    def incomplete(self) -> str | None:
        """Why the run's numbers must not be used, or None for a complete run."""
        return incomplete(self.attributes.status)


def incomplete(status: str) -> str | None:
    """Why the numbers of a run with this status must not be used, or None."""
    if status == "complete":
        return None
    meaning = {
        "running": "still running, or killed",
        "interrupted": "stopped by a signal before its last step",
        "failed": "the run failed",
    }.get(status, "unknown status")
    return f"incomplete: status is '{status}' ({meaning})"


class TraceError(Exception):
    """A file that cannot be used.

    Attributes:
        path: the file.
        problems: one sentence for each deviation.
    """

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        super().__init__(f"{path}: {'; '.join(problems)}")
        self.path = path
        self.problems = tuple(problems)
