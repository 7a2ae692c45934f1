"""Whether an open file has the shape that the schema promises."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import h5py
import numpy as np

from shardbench.read.schema import ALL_TABLES, SCHEMA, SCHEMA_VERSION, Attributes, Config, Kind, TraceError
from shardbench.read.text import DAMAGED, text_of


def refuse_other_schema(path: Path, attributes: h5py.AttributeManager) -> None:
    """Checked before all else: in another version nothing else can be expected to hold."""
    for name in ("schema", "schema_version"):
        if name not in attributes:
            raise TraceError(path, [f"no root attribute '{name}': not written by shardbench"])
    schema, version = text_of(attributes["schema"]), int(attributes["schema_version"])
    if schema != SCHEMA:
        raise TraceError(path, [f"schema is '{schema}', not '{SCHEMA}': not written by shardbench"])
    if version != SCHEMA_VERSION:
        reason = f"schema_version is {version}, this shardbench reads only {SCHEMA_VERSION}"
        raise TraceError(path, [f"{reason}; use the shardbench that belongs to the file's commit"])


def _attribute_fields() -> Iterator[tuple[str, Kind, bool]]:
    """Name, kind and whether required, of each root attribute."""
    types = get_type_hints(Attributes)
    for field in dataclasses.fields(Attributes):
        kind = {str: Kind.TEXT, float: Kind.REAL}.get(types[field.name], Kind.INTEGER)
        yield field.name, kind, field.default is dataclasses.MISSING


ATTRIBUTES = tuple(_attribute_fields())
"""Known before a process is forked: each would find them out again."""


def attribute_problems(attributes: h5py.AttributeManager) -> Iterator[str]:
    for name, kind, required in ATTRIBUTES:
        if name not in attributes:
            if required:
                yield f"root attribute '{name}' is missing"
            continue
        attribute = attributes.get_id(name)
        if attribute.shape not in ((), (1,)) or not _holds(attribute.dtype, kind):
            yield f"root attribute '{name}' must be {kind.value}"


def config_problems(file: h5py.File) -> Iterator[str]:
    if not isinstance(file.get("config"), h5py.Dataset):
        yield "dataset 'config' is missing"
        return
    try:
        config = json.loads(text_of(file["config"][()]))
    except (json.JSONDecodeError, TypeError) as error:
        yield f"dataset 'config' does not hold JSON text ({error})"
        return
    types = get_type_hints(Config)
    required = [field for field in dataclasses.fields(Config) if field.default is dataclasses.MISSING]
    for field in (f.name for f in required):
        container = str if types[field] is str else dict
        if not isinstance(config, dict) or not isinstance(config.get(field), container):
            wanted = "an object" if container is dict else "a string"
            yield f"dataset 'config' must have a key '{field}' that holds {wanted}"


def table_problems(dataset: Any, table: str, file_size: int) -> Iterator[str]:
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
