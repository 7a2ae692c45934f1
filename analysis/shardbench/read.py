"""Reads one trace file into pandas tables. The only module that knows HDF5.

A file that does not have the shape that schema version 1 promises raises `TraceError`, which names
the file and every deviation. Whether the numbers make sense is the business of `validate`.
"""

import dataclasses
import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from math import nan
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, get_type_hints
from zlib import crc32

import h5py
import numpy as np

from shardbench.isolate import IsolatedFailure, Limits, run_isolated, stream_isolated

if TYPE_CHECKING:
    import pandas as pd  # and where tables are made: reading a header shall not wait for it

SCHEMA = "shardbench"
SCHEMA_VERSION = 1

BLOCK_ROWS = 8192
"""Rows of a table that are in memory at once where it is read in blocks; 1 MB of events."""

DAMAGED = "so the file is damaged; copy it again or repeat the run"


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
        return _incomplete(self.attributes.status)


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

    A process of its own opens it, because damage can crash the HDF5 library. What arrives is compared
    with the file's checksums, so that damage is not mistaken for a measurement.

    Raises:
        TraceError: the file is missing, damaged, of another schema or version, or not shaped as
            the schema promises.
    """
    facts, contents = _read(path, ALL_TABLES)
    header, tables = _header(facts), _frames(path, facts, contents)
    return Trace(path, header.attributes, header.config, **tables)


def read_header(path: Path) -> Header:
    """Reads how a run was configured and how it ended; takes no longer for a long run.

    Raises:
        TraceError: as for `read_trace`, but damage to tables is not noticed.
    """
    return _header(_read(path, ())[0])


def read_tables(path: Path, names: Collection[str]) -> tuple[Header, dict[str, "pd.DataFrame"]]:
    """Reads the header and some tables whole.

    Raises:
        TraceError: as for `read_trace`, but damage to other tables is not noticed.
    """
    facts, contents = _read(path, names)
    return _header(facts), {
        name: table for name, table in _frames(path, facts, contents).items() if name in names
    }


def read_blocks(path: Path, table: str) -> Generator["pd.DataFrame", None, None]:
    """Yields a table in blocks of `BLOCK_ROWS` rows, in the file's order: little memory, however long it is.

    Its checksum is known to hold only when the last block has come. Keep nothing of them if this raises.
    Whoever stops early closes the iterator.

    Raises:
        TraceError: as for `read_trace`, but damage to other tables is not noticed.
    """
    with _opened(path, [table]) as (facts, blocks):
        for name, rows in blocks:
            yield _decoded(path, name, _rows(facts, name, rows))


def _read(path: Path, wanted: Collection[str]) -> tuple[dict[str, Any], dict[str, bytearray]]:
    """What `_contents` says first, and the rows of the wanted tables as they lie in the file."""
    with _opened(path, wanted) as (facts, blocks):
        contents = {name: bytearray() for name in facts["tables"]}
        for name, rows in blocks:
            contents[name] += rows
    return facts, contents


@contextmanager
def _opened(
    path: Path, wanted: Collection[str]
) -> Iterator[tuple[dict[str, Any], Iterator[tuple[str, bytearray]]]]:
    """What `_contents` says first, and blocks of the wanted tables, with the name of theirs.

    Raises:
        TraceError: where the `with` statement begins or while blocks are taken, the last time after the last block.
    """
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise TraceError(path, ["cannot be read: not a regular file; pass the path of a trace file"])
        with closing(stream_isolated(lambda: _contents(path, wanted), _limits(status.st_size))) as parts:
            facts = json.loads(next(parts))
            _refuse_problems(path, facts)
            yield facts, _checked_blocks(path, facts, parts, wanted)
    except (OSError, IsolatedFailure) as error:
        raise TraceError(path, [_unreadable(error)]) from error


def _checked_blocks(
    path: Path, facts: Mapping[str, Any], parts: Iterator[bytearray], wanted: Collection[str]
) -> Iterator[tuple[str, bytearray]]:
    sums = {name: _layout_sum(table["layout"]) for name, table in facts["tables"].items()}
    for name, table in facts["tables"].items():
        for _ in range(0, table["rows"], BLOCK_ROWS):
            if failure := next(parts):
                _refuse_problems(path, json.loads(failure))
            rows = next(parts)
            sums[name] = crc32(rows, sums[name])
            yield name, rows
    for _ in parts:  # none is left; but how the process ends counts
        pass
    if problems := list(_checksum_problems(facts, sums, wanted)):
        raise TraceError(path, problems)


def _refuse_problems(path: Path, facts: Mapping[str, Any]) -> None:
    if facts["problems"]:
        raise TraceError(path, facts["problems"])


def _rows(facts: Mapping[str, Any], table: str, content: bytearray) -> np.ndarray[Any, Any]:
    return np.frombuffer(content, np.dtype(facts["tables"][table]["layout"]))


def _limits(size: int) -> Limits:
    """Far more than a sound file of `size` bytes needs; tables are stored uncompressed."""
    return Limits(
        wall_s=60 + size / 5e6,  # a slow network file system
        cpu_s=5 + int(size / 20e6),  # measured: a few ms, and more than 500 MB/s
        memory=(512 << 20) + 4 * size,
        result=(64 << 20) + 2 * size,
    )


def _unreadable(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    if "unable to lock file" in reason:
        return "is being written by another process, which has locked it; wait for that to end"
    return f"cannot be read, truncated or damaged? ({reason}); copy it again or repeat the run"


def _contents(path: Path, wanted: Collection[str]) -> Iterator[bytes | memoryview]:
    """What the process that opens the file says: facts as JSON, then the tables in blocks of rows.

    The facts are `problems` and, if there are none, `attributes`, `config` and `tables` (layout and number of
    rows). Before each block stands an empty part, or in its place the `problems` that end the reading.
    """
    try:
        with h5py.File(path, "r") as file:
            yield from _sound_contents(path, file, wanted)
    except TraceError as error:
        yield json.dumps({"problems": error.problems}).encode()
    except MemoryError:
        raise
    # h5py reports damage as almost any exception, depending on which bytes are hit.
    except Exception as error:
        yield json.dumps({"problems": [_unreadable(error)]}).encode()


def _sound_contents(path: Path, file: h5py.File, wanted: Collection[str]) -> Iterator[bytes | memoryview]:
    _refuse_other_schema(path, file)
    problems = [*_attribute_problems(file), *_config_problems(file)]
    size = path.stat().st_size
    datasets = {name: file.get(name) for name in TABLES if name in wanted}
    datasets |= {name: file[name] for name in OPTIONAL_TABLES if name in wanted and name in file}
    for name, dataset in datasets.items():
        problems += _table_problems(dataset, name, size)
    if problems:
        # A run that was killed lacks what is written last: say so before listing what is missing.
        incomplete = _incomplete(_text(file.attrs.get("status", "complete")))
        raise TraceError(path, [incomplete, *problems] if incomplete else problems)
    facts = {
        "problems": [],
        "attributes": {name: _plain(file.attrs[name]) for name in file.attrs},
        "config": _text(file["config"][()]),
        "tables": {
            name: {"layout": _layout(dataset.dtype), "rows": len(dataset)}
            for name, dataset in datasets.items()
        },
    }
    yield json.dumps(facts).encode()
    for dataset in datasets.values():
        for first in range(0, len(dataset), BLOCK_ROWS):
            rows = np.ascontiguousarray(dataset[first : first + BLOCK_ROWS])
            yield b""
            yield rows.view(np.uint8).data


def _plain(value: Any) -> str | int | float | None:
    """An attribute's value; None where it is neither text nor a number, which the writer never writes."""
    try:
        return _text(value)
    except TypeError:
        scalar = np.asarray(value)
        if scalar.size != 1 or scalar.dtype.kind not in "iuf":
            return None
        return float(scalar.item()) if scalar.dtype.kind == "f" else int(scalar.item())


def _layout(dtype: np.dtype[Any]) -> dict[str, Any]:
    """A compound type as np.dtype takes it, of JSON's types."""
    names = list(dtype.names or ())
    fields = dtype.fields
    assert fields is not None  # of a compound type
    return {
        "names": names,
        "formats": [dtype[name].str for name in names],
        "offsets": [int(fields[name][1]) for name in names],
        "itemsize": dtype.itemsize,
    }


def _checksum_problems(
    facts: Mapping[str, Any], sums: Mapping[str, int], wanted: Collection[str]
) -> Iterator[str]:
    """How the contents deviate from the sums that the writer added when it closed the file (SCHEMA.md)."""
    attributes = dict(facts["attributes"])
    stored = attributes.pop("checksums", None)
    if stored is None:
        # A run that was killed could not vouch for its file, which is incomplete anyhow.
        if attributes["status"] == "complete":
            yield "no root attribute 'checksums': damaged, or written by an older version; repeat the run"
        return
    try:
        written = json.loads(stored)
        expected = {("root attributes", ""): written["attributes"], ("dataset", "config"): written["config"]}
        expected |= {("dataset", name): value for name, value in written["tables"].items() if name in wanted}
    except (ValueError, TypeError, KeyError, AttributeError):
        yield f"root attribute 'checksums' cannot be understood, {DAMAGED}"
        return
    found = {
        ("root attributes", ""): _attributes_sum(attributes),
        ("dataset", "config"): crc32(_bytes(facts["config"])),
    }
    found |= {("dataset", name): value for name, value in sums.items()}
    for kind, name in sorted(expected.keys() | found.keys()):
        if expected.get((kind, name)) != found.get((kind, name)):
            subject = f"{kind} '{name}'" if name else kind
            yield f"the checksum of {subject} is not the one stored when the file was closed, {DAMAGED}"


def _attributes_sum(attributes: Mapping[str, str | int | float | None]) -> int:
    texts = {
        _bytes(name): _bytes(format(value, ".17g") if isinstance(value, float) else str(value))
        for name, value in attributes.items()
    }
    return crc32(b"".join(name + b"\0" + texts[name] + b"\0" for name in sorted(texts)))


def _layout_sum(layout: Mapping[str, Any]) -> int:
    """With what a table's sum begins."""
    columns = zip(layout["names"], layout["formats"], layout["offsets"])
    lines = [f"{name} {kind} {offset}\n" for name, kind, offset in columns]
    return crc32(_bytes("".join([*lines, f"{layout['itemsize']}\n"])))


def _bytes(text: str) -> bytes:
    """The bytes in the file, also those that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _printable(text: str) -> str:
    return _bytes(text).decode("utf-8", "replace")


def _header(facts: Mapping[str, Any]) -> Header:
    config = json.loads(facts["config"])
    return Header(_attributes(facts), Config(**_known_fields(Config, config)))


def _frames(
    path: Path, facts: Mapping[str, Any], contents: dict[str, bytearray]
) -> dict[str, "pd.DataFrame"]:
    """Every table of the schema; empty where there is no content."""
    import pandas as pd

    return {
        # Popped, so that only one table at a time is there twice.
        name: (
            _decoded(path, name, _rows(facts, name, contents.pop(name)))
            if name in contents
            else pd.DataFrame(columns=list(columns))
        )
        for name, columns in ALL_TABLES.items()
    }


def _attributes(facts: Mapping[str, Any]) -> Attributes:
    values = _known_fields(Attributes, facts["attributes"])
    return Attributes(**{n: _printable(v) if isinstance(v, str) else v for n, v in values.items()})


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


def _attribute_fields() -> Iterator[tuple[str, Kind, bool]]:
    """Name, kind and whether required, of each root attribute."""
    types = get_type_hints(Attributes)
    for field in dataclasses.fields(Attributes):
        kind = {str: Kind.TEXT, float: Kind.REAL}.get(types[field.name], Kind.INTEGER)
        yield field.name, kind, field.default is dataclasses.MISSING


def _attribute_problems(file: h5py.File) -> Iterator[str]:
    for name, kind, required in _attribute_fields():
        if name not in file.attrs:
            if required:
                yield f"root attribute '{name}' is missing"
            continue
        attribute = file.attrs.get_id(name)
        if attribute.shape not in ((), (1,)) or not _holds(attribute.dtype, kind):
            yield f"root attribute '{name}' must be {kind.value}"


def _config_problems(file: h5py.File) -> Iterator[str]:
    if not isinstance(file.get("config"), h5py.Dataset):
        yield "dataset 'config' is missing"
        return
    try:
        config = json.loads(_text(file["config"][()]))
    except (json.JSONDecodeError, TypeError) as error:
        yield f"dataset 'config' does not hold JSON text ({error})"
        return
    required = [field for field in dataclasses.fields(Config) if field.default is dataclasses.MISSING]
    for field in (f.name for f in required):
        container = str if get_type_hints(Config)[field] is str else dict
        if not isinstance(config, dict) or not isinstance(config.get(field), container):
            wanted = "an object" if container is dict else "a string"
            yield f"dataset 'config' must have a key '{field}' that holds {wanted}"


def _table_problems(dataset: Any, table: str, file_size: int) -> Iterator[str]:
    if not isinstance(dataset, h5py.Dataset):
        yield f"dataset '{table}' is missing"
        return
    shape, row = dataset.shape, dataset.dtype
    if shape is None or len(shape) != 1 or row.names is None:
        yield f"dataset '{table}' must be a one-dimensional compound table"
        return
    for column, kind in ALL_TABLES[table].items():
        if column not in row.names:
            yield f"dataset '{table}' has no field '{column}'"
        elif not _holds(row[column], kind):
            yield f"field '{column}' of dataset '{table}' is {row[column]}, must be {kind.value}"
    for column in row.names:
        if row[column].kind not in "iubfS":
            yield (
                f"field '{column}' of dataset '{table}' is {row[column]}, must be a number or text of "
                f"fixed length"
            )
    # Rows that were never written read as zeros; a sound file has every row, uncompressed.
    claimed = shape[0] * row.itemsize
    if claimed > file_size:
        yield f"dataset '{table}' claims {claimed:,} bytes of rows, more than the file has, {DAMAGED}"


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


def _decoded(path: Path, table: str, rows: np.ndarray[Any, Any]) -> "pd.DataFrame":
    import pandas as pd

    try:
        return pd.DataFrame(
            {column: _values(rows[column], kind) for column, kind in ALL_TABLES[table].items()}
        )
    except ValueError as error:  # text that is not UTF-8
        raise TraceError(path, [_unreadable(error)]) from error


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
