"""A table, part by part, into a CSV or Parquet file that is there when it is whole."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from shardbench.errors import RunError, UsageError


def write_csv(parts: Iterable[pd.DataFrame], path: Path) -> int:
    """UTF-8 with a line of column names, quoted as RFC 4180 has it, and returns the number of rows.

    Numbers have a decimal point and all digits that they need to be read back as they are; what is missing is empty.
    """
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        for index, part in enumerate(parts):
            part.to_csv(file, index=False, header=index == 0, lineterminator="\r\n")
            rows += len(part)
    return rows


def write_parquet(parts: Iterable[pd.DataFrame], path: Path) -> int:
    """One row group a part; returns the number of rows.

    Raises:
        UsageError: the library is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "Parquet needs the Python library pyarrow, which is not installed here; install it, or write .csv"
        ) from None
    rows = 0
    with ExitStack() as stack:
        writer = None
        for part in parts:
            if writer is None:
                schema = _schema(pyarrow, part)
                writer = stack.enter_context(parquet.ParquetWriter(path, schema))
            writer.write_table(pyarrow.Table.from_pandas(part, schema, preserve_index=False))
            rows += len(part)
    return rows


def _schema(pyarrow: Any, part: pd.DataFrame) -> Any:
    """From the types, not from the values, of which a column may have none in the first part."""
    kinds = {"i": pyarrow.int64(), "f": pyarrow.float64()}
    return pyarrow.schema(
        [(name, kinds.get(kind.kind, pyarrow.string())) for name, kind in part.dtypes.items()]
    )


WRITERS: Mapping[str, Callable[[Iterable[pd.DataFrame], Path], int]] = {
    ".csv": write_csv,
    ".parquet": write_parquet,
}
"""By the ending of the file's name."""


@contextmanager
def replaced_when_whole(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place unless an exception ends the block.

    Raises:
        RunError: it cannot be written.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        os.fchmod(handle, 0o666 & ~_umask())
        os.close(handle)
        yield temporary
        temporary.replace(path)
        temporary = None
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"{path} cannot be written ({reason}); pass another path with -o") from error
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    """It can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
