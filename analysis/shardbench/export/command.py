"""`shardbench export`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from shardbench.errors import RunError, UsageError
from shardbench.read import ALL_TABLES

TABLES = ("steps", "runs", "points", *(table for table in ALL_TABLES if table != "steps"))
ENDINGS = (".csv", ".parquet")

DESCRIPTION = (
    "Writes one table of all runs below DIR to one file. steps: a row for each file, rank and step. runs: one for each "
    "file, with its configuration and what made it. points: one for each configuration and N, as the report shows them. The "
    "others are the files' tables of these names (src/trace/SCHEMA.md). Files that cannot be used are named on stderr."
)


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Declares the command's options."""
    parser = add("export", help="write a table of many runs as CSV or Parquet", description=DESCRIPTION)
    parser.add_argument("directory", type=Path, metavar="DIR", help="a folder with *.h5 below, or a file")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="what to write, replaced where it exists: NAME.csv, or NAME.parquet where pyarrow is installed",
    )
    parser.add_argument(
        "--table",
        choices=TABLES,
        default="steps",
        metavar="TABLE",
        help=f"{', '.join(TABLES)} (default: steps)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        UsageError, RunError: see there.
    """
    output: Path = options.output
    if output.suffix not in ENDINGS:
        raise UsageError(
            f"-o {output} ends neither in {' nor in '.join(ENDINGS)}, so its format is not known"
        )

    from shardbench.export.tables import parts
    from shardbench.export.write import WRITERS, replaced_when_whole
    from shardbench.summary.usable import Excluded

    excluded: list[Excluded] = []
    with replaced_when_whole(output) as temporary:
        rows = WRITERS[output.suffix](parts(options.table, options.directory, excluded), temporary)
        for file in excluded:
            print(f"left out: {file.name}: {file.reason}", file=sys.stderr)
        if not rows:
            raise RunError(
                f"no run below {options.directory} has rows for a table '{options.table}'; nothing is written"
            )
    print(f"{output}: {rows} rows")
    return 0
