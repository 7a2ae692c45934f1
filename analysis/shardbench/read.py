"""Reads one trace file into pandas tables. The only module that knows HDF5.

A file that does not have the shape that schema version 1 promises raises `TraceError`, which names
the file and every deviation. Whether the numbers make sense is the business of `validate`.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import nan
from pathlib import Path
from typing import Any, get_type_hints

import h5py
import numpy as np
import pandas as pd

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
    """The effective configuration: options by long name without dashes, and what they led to."""

    options: dict[str, Any]
    model: dict[str, Any]
    environment: dict[str, Any]
    wait_policy: str


@dataclass(frozen=True)
class Trace:
    """One file: its attributes, its configuration and its tables (columns as in `TABLES`)."""

    path: Path
    attributes: Attributes
    config: Config
    ranks: pd.DataFrame
    clock: pd.DataFrame
    steps: pd.DataFrame
    events: pd.DataFrame
    memory: pd.DataFrame
    memory_peak: pd.DataFrame
    ledger: pd.DataFrame
    tensors: pd.DataFrame
    calibration: pd.DataFrame
    collectives: pd.DataFrame

    @property
    def incomplete(self) -> str | None:
        """Why the run's numbers must not be used, or None for a complete run."""
        return _incomplete(self.attributes.status)


def _incomplete(status: str) -> str | None:
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


def read_trace(path: Path) -> Trace:
    """Reads a whole file.

    Raises:
        TraceError: the file is missing, damaged, of another schema or version, or not shaped as
            the schema promises.
    """
    try:
        with h5py.File(path, "r") as file:
            return _trace(path, file)
    # The HDF5 library reports damage as any of these, depending on which bytes are hit.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TraceError(path, [f"cannot be read, truncated or damaged? ({reason})"]) from error


def _trace(path: Path, file: h5py.File) -> Trace:
    _refuse_other_schema(path, file)
    problems = [*_attribute_problems(file), *_config_problems(file)]
    for table, columns in TABLES.items():
        problems += _table_problems(file, table, columns)
    for table, columns in OPTIONAL_TABLES.items():
        if table in file:
            problems += _table_problems(file, table, columns)
    if problems:
        # A run that was killed lacks what is written last: say so before listing what is missing.
        incomplete = _incomplete(_text(file.attrs.get("status", "complete")))
        raise TraceError(path, [incomplete, *problems] if incomplete else problems)
    config = json.loads(_text(file["config"][()]))
    tables = {table: _table(file[table], columns) for table, columns in TABLES.items()}
    for table, columns in OPTIONAL_TABLES.items():
        tables[table] = _table(file[table], columns) if table in file else pd.DataFrame(columns=list(columns))
    return Trace(path, _attributes(file), Config(**_known_fields(Config, config)), **tables)


def _refuse_other_schema(path: Path, file: h5py.File) -> None:
    """Checked before all else: in another version nothing else can be expected to hold."""
    for name in ("schema", "schema_version"):
        if name not in file.attrs:
            raise TraceError(path, [f"no root attribute '{name}': not written by shardbench"])
    schema, version = _text(file.attrs["schema"]), int(file.attrs["schema_version"])
    if schema != SCHEMA:
        raise TraceError(path, [f"schema is '{schema}', not '{SCHEMA}': not written by shardbench"])
    if version != SCHEMA_VERSION:
        reason = f"schema_version is {version}, this shardbench reads only {SCHEMA_VERSION}"
        raise TraceError(path, [f"{reason}; use the shardbench that belongs to the file's commit"])


def _known_fields(record: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: values[f.name] for f in dataclasses.fields(record) if f.name in values}


def _attribute_fields() -> Iterator[tuple[str, Callable[[Any], Any], Kind, bool]]:
    """Name, decoder, kind and whether required, of each root attribute."""
    types = get_type_hints(Attributes)
    for field in dataclasses.fields(Attributes):
        required = field.default is dataclasses.MISSING
        if types[field.name] is str:
            yield field.name, _text, Kind.TEXT, required
        elif types[field.name] is float:
            yield field.name, float, Kind.REAL, required
        else:
            yield field.name, int, Kind.INTEGER, required


def _attribute_problems(file: h5py.File) -> Iterator[str]:
    for name, _, kind, required in _attribute_fields():
        if name not in file.attrs:
            if required:
                yield f"root attribute '{name}' is missing"
            continue
        attribute = file.attrs.get_id(name)
        if attribute.shape not in ((), (1,)) or not _holds(attribute.dtype, kind):
            yield f"root attribute '{name}' must be {kind.value}"


def _attributes(file: h5py.File) -> Attributes:
    return Attributes(
        **{name: decode(file.attrs[name]) for name, decode, _, _ in _attribute_fields() if name in file.attrs}
    )


def _config_problems(file: h5py.File) -> Iterator[str]:
    if not isinstance(file.get("config"), h5py.Dataset):
        yield "dataset 'config' is missing"
        return
    try:
        config = json.loads(_text(file["config"][()]))
    except (json.JSONDecodeError, TypeError) as error:
        yield f"dataset 'config' does not hold JSON text ({error})"
        return
    for field, expected in get_type_hints(Config).items():
        container = dict if expected is not str else str
        if not isinstance(config, dict) or not isinstance(config.get(field), container):
            wanted = "an object" if container is dict else "a string"
            yield f"dataset 'config' must have a key '{field}' that holds {wanted}"


def _table_problems(file: h5py.File, table: str, columns: Mapping[str, Kind]) -> Iterator[str]:
    dataset = file.get(table)
    if not isinstance(dataset, h5py.Dataset):
        yield f"dataset '{table}' is missing"
        return
    if dataset.ndim != 1 or dataset.dtype.names is None:
        yield f"dataset '{table}' must be a one-dimensional compound table"
        return
    for column, kind in columns.items():
        if column not in dataset.dtype.names:
            yield f"dataset '{table}' has no field '{column}'"
        elif not _holds(dataset.dtype[column], kind):
            yield f"field '{column}' of dataset '{table}' is {dataset.dtype[column]}, must be {kind.value}"


def _holds(dtype: np.dtype[Any], kind: Kind) -> bool:
    is_text = h5py.check_string_dtype(dtype) is not None
    is_integer = dtype.kind in "iub"  # b: an HDF5 enumeration of FALSE and TRUE
    is_real = dtype.kind == "f"
    return {
        Kind.INTEGER: is_integer,
        Kind.REAL: is_real,
        Kind.NUMBER: is_integer or is_real,
        Kind.TEXT: is_text,
        Kind.LABEL: is_text or is_integer,
    }[kind]


def _table(dataset: h5py.Dataset, columns: Mapping[str, Kind]) -> pd.DataFrame:
    rows = dataset[()]
    return pd.DataFrame({column: _values(rows[column], kind) for column, kind in columns.items()})


def _values(column: np.ndarray[Any, Any], kind: Kind) -> np.ndarray[Any, Any]:
    """A column in native 64-bit types, so that differences of unsigned counts cannot wrap."""
    if kind in (Kind.REAL, Kind.NUMBER):
        return column.astype(np.float64)
    if kind is Kind.INTEGER or column.dtype.kind in "iu":
        return column.astype(np.int64)
    # Traces repeat few distinct texts: decode each once and share the object.
    distinct, positions = np.unique(column, return_inverse=True)
    decoded = np.array([_text(value) for value in distinct], dtype=object)
    return decoded[positions]


def _text(value: Any) -> str:
    """Text of a fixed or variable-length string, without the null padding.

    Raises:
        ValueError: the bytes are not UTF-8.
        TypeError: the value is not text.
    """
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.rstrip(b"\0").decode("utf-8")
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of text")
    return str(value)
