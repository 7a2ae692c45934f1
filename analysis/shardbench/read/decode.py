"""What arrived → header and tables."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardbench.read.schema import ALL_TABLES, Attributes, Config, Header, Kind, TraceError
from shardbench.read.text import printable, text_of, unreadable

if TYPE_CHECKING:
    import pandas as pd


def header_of(facts: Mapping[str, Any]) -> Header:
    config = json.loads(facts["config"])
    return Header(_attributes(facts), Config(**_known_fields(Config, config)))


def _attributes(facts: Mapping[str, Any]) -> Attributes:
    values = _known_fields(Attributes, facts["attributes"])
    return Attributes(**{n: printable(v) if isinstance(v, str) else v for n, v in values.items()})


def _known_fields(record: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: values[f.name] for f in dataclasses.fields(record) if f.name in values}


def frames(path: Path, facts: Mapping[str, Any], contents: dict[str, bytearray]) -> dict[str, "pd.DataFrame"]:
    """Every table of the schema; empty where there is no content."""
    import pandas as pd

    return {
        # Popped, so that only one table at a time is there twice.
        name: (
            decoded(path, name, rows_of(facts, name, contents.pop(name)))
            if name in contents
            else pd.DataFrame(columns=list(columns))
        )
        for name, columns in ALL_TABLES.items()
    }


def rows_of(facts: Mapping[str, Any], table: str, content: bytearray) -> np.ndarray[Any, Any]:
    return np.frombuffer(content, np.dtype(facts["tables"][table]["layout"]))


def decoded(path: Path, table: str, rows: np.ndarray[Any, Any]) -> "pd.DataFrame":
    import pandas as pd

    try:
        return pd.DataFrame(
            {column: _values(rows[column], kind) for column, kind in ALL_TABLES[table].items()}
        )
    except ValueError as error:  # text that is not UTF-8
        raise TraceError(path, [unreadable(error)]) from error


def _values(column: np.ndarray[Any, Any], kind: Kind) -> np.ndarray[Any, Any]:
    """A column in native 64-bit types, so that differences of unsigned counts cannot wrap."""
    if kind in (Kind.REAL, Kind.NUMBER):
        return column.astype(np.float64)
    if kind is Kind.INTEGER or column.dtype.kind in "iu":
        return column.astype(np.int64)
    # Traces repeat few distinct texts: decode each once and share the object.
    distinct, positions = np.unique(column, return_inverse=True)
    return np.array([text_of(value) for value in distinct], dtype=object)[positions]
