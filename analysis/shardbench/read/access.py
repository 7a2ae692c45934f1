"""Opens a file in a process of its own, and compares what arrives with the file's checksums."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any
from zlib import crc32

from shardbench.isolate import IsolatedFailure, Limits, stream_isolated
from shardbench.read import contents
from shardbench.read.checksums import checksum_problems, layout_sum
from shardbench.read.schema import TraceError
from shardbench.read.text import unreadable


def contents_of(path: Path, wanted: Collection[str]) -> tuple[dict[str, Any], dict[str, bytearray]]:
    """What `contents.parts` says first, and the rows of the wanted tables as they lie in the file."""
    with opened(path, wanted) as (facts, blocks):
        tables = {name: bytearray() for name in facts["tables"]}
        for name, rows in blocks:
            tables[name] += rows
    return facts, tables


@contextmanager
def opened(
    path: Path, wanted: Collection[str]
) -> Iterator[tuple[dict[str, Any], Iterator[tuple[str, bytearray]]]]:
    """What `contents.parts` says first, and blocks of the wanted tables, with the name of theirs.

    Raises:
        TraceError: where the `with` statement begins or while blocks are taken, the last time after the last block.
    """
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise TraceError(path, ["cannot be read: not a regular file; pass the path of a trace file"])
        with closing(stream_isolated(lambda: contents.parts(path, wanted), _limits(status.st_size))) as parts:
            facts = json.loads(next(parts))
            _refuse_problems(path, facts)
            yield facts, _checked_blocks(path, facts, parts, wanted)
    except (OSError, IsolatedFailure) as error:
        raise TraceError(path, [unreadable(error)]) from error


def _checked_blocks(
    path: Path, facts: Mapping[str, Any], parts: Iterator[bytearray], wanted: Collection[str]
) -> Iterator[tuple[str, bytearray]]:
    sums = {name: layout_sum(table["layout"]) for name, table in facts["tables"].items()}
    for name, table in facts["tables"].items():
        for _ in range(0, table["rows"], contents.BLOCK_ROWS):
            if failure := next(parts):
                _refuse_problems(path, json.loads(failure))
            rows = next(parts)
            sums[name] = crc32(rows, sums[name])
            yield name, rows
    for _ in parts:  # none is left; but how the process ends counts
        pass
    if problems := list(checksum_problems(facts, sums, wanted)):
        raise TraceError(path, problems)


def _refuse_problems(path: Path, facts: Mapping[str, Any]) -> None:
    if facts["problems"]:
        raise TraceError(path, facts["problems"])


def _limits(size: int) -> Limits:
    """Far more than a sound file of `size` bytes needs; tables are stored uncompressed."""
    return Limits(
        wall_s=60 + size / 5e6,  # a slow network file system
        cpu_s=5 + int(size / 20e6),  # measured: a few ms, and more than 500 MB/s
        memory=(512 << 20) + 4 * size,
        result=(64 << 20) + 2 * size,
    )
