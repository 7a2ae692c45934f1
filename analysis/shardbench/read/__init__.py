"""Reads one trace file into pandas tables.

A file that does not have the shape that schema version 1 promises raises `TraceError`, which names
the file and every deviation. Whether the numbers make sense is the business of `validate`.

Only `contents` and `shape`, which run in a process of their own, know HDF5.
"""

from collections.abc import Collection, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from shardbench.read.access import contents_of, opened
from shardbench.read.decode import decoded, frames, header_of, rows_of
from shardbench.read.schema import (
    ALL_TABLES,
    SAMPLED,
    SCHEMA_VERSION,
    TABLES,
    Attributes,
    Config,
    Header,
    Kind,
    Trace,
    TraceError,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ALL_TABLES",
    "SAMPLED",
    "SCHEMA_VERSION",
    "TABLES",
    "Attributes",
    "Config",
    "Header",
    "Kind",
    "Trace",
    "TraceError",
    "read_blocks",
    "read_header",
    "read_tables",
    "read_trace",
]


def read_trace(path: Path) -> Trace:
    """Reads a whole file.

    A process of its own opens it, because damage can crash the HDF5 library. What arrives is compared
    with the file's checksums, so that damage is not mistaken for a measurement.

    Raises:
        TraceError: the file is missing, damaged, of another schema or version, or not shaped as
            the schema promises.
    """
    facts, contents = contents_of(path, ALL_TABLES)
    header, tables = header_of(facts), frames(path, facts, contents)
    return Trace(path, header.attributes, header.config, **tables)


def read_header(path: Path) -> Header:
    """Reads how a run was configured and how it ended; takes no longer for a long run.

    Raises:
        TraceError: as for `read_trace`, but damage to tables is not noticed.
    """
    return header_of(contents_of(path, ())[0])


def read_tables(path: Path, names: Collection[str]) -> tuple[Header, dict[str, "pd.DataFrame"]]:
    """Reads the header and some tables whole.

    Raises:
        TraceError: as for `read_trace`, but damage to other tables is not noticed.
    """
    facts, contents = contents_of(path, names)
    return header_of(facts), {
        name: table for name, table in frames(path, facts, contents).items() if name in names
    }


def read_blocks(path: Path, table: str) -> Generator["pd.DataFrame", None, None]:
    """Yields a table in blocks of `BLOCK_ROWS` rows, in the file's order: little memory, however long it is.

    Its checksum is known to hold only when the last block has come. Keep nothing of them if this raises.
    Whoever stops early closes the iterator.

    Raises:
        TraceError: as for `read_trace`, but damage to other tables is not noticed.
    """
    with opened(path, [table]) as (facts, blocks):
        for name, rows in blocks:
            yield decoded(path, name, rows_of(facts, name, rows))
