"""What the process that opens a file says of it."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from shardbench.read.schema import OPTIONAL_TABLES, TABLES, TraceError, incomplete
from shardbench.read.shape import attribute_problems, config_problems, refuse_other_schema, table_problems
from shardbench.read.text import text_of, unreadable

BLOCK_ROWS = 8192
"""Rows of a table that are in memory at once where it is read in blocks; 1 MB of events."""


def parts(path: Path, wanted: Collection[str]) -> Iterator[bytes | memoryview]:
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
        yield json.dumps({"problems": [unreadable(error)]}).encode()


def _sound_contents(path: Path, file: h5py.File, wanted: Collection[str]) -> Iterator[bytes | memoryview]:
    attributes = file.attrs  # a new object each time it is asked for
    refuse_other_schema(path, attributes)
    problems = [*attribute_problems(attributes), *config_problems(file)]
    size = path.stat().st_size
    datasets = {name: file.get(name) for name in TABLES if name in wanted}
    datasets |= {name: file[name] for name in OPTIONAL_TABLES if name in wanted and name in file}
    for name, dataset in datasets.items():
        problems += table_problems(dataset, name, size)
    if problems:
        # A run that was killed lacks what is written last: say so before listing what is missing.
        reason = incomplete(text_of(attributes.get("status", "complete")))
        raise TraceError(path, [reason, *problems] if reason else problems)
    facts = {
        "problems": [],
        "attributes": {name: _plain(attributes[name]) for name in attributes},
        "config": text_of(file["config"][()]),
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
        return text_of(value)
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
