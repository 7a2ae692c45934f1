"""`shardbench report`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardbench.arguments import memory_size
from shardbench.errors import RunError, UsageError

if TYPE_CHECKING:
    from shardbench.predicted import PredictedPoint
    from shardbench.report.predictions import Request
    from shardbench.summary.studies import Study


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Declares the command's options."""
    parser = add(
        "report",
        help="summarise a directory of files as a table and an HTML page",
        description="Reads all *.h5 below DIR, prints a summary table and writes one self-contained "
        "HTML page. Files that cannot be used are listed with the reason.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the HDF5 files are")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page to write (default: report.html)",
    )
    parser.add_argument(
        "--gpu-memory",
        type=memory_size,
        metavar="SIZE",
        help="what a rank has, for example 80GB: the page says what fits (default: not known)",
    )
    parser.add_argument(
        "--predict-to",
        type=int,
        metavar="N",
        help="also draw what shardbench predict expects at each doubling up to N; small collectives that files of "
        "simulated machines lack are simulated",
    )
    parser.add_argument(
        "--bin",
        type=Path,
        metavar="DIR",
        help="for --predict-to: the executables (default: SHARDBENCH_BIN, else build/release/bin)",
    )
    parser.add_argument("--files-only", action="store_true", help="for --predict-to: simulate nothing")
    parser.add_argument(
        "--sim-bin",
        type=Path,
        metavar="DIR",
        help="for --predict-to: the simulated executables, as for simulate",
    )
    parser.set_defaults(run=report)


def report(options: argparse.Namespace) -> int:
    """Prints the table and writes the page; 0 done."""
    from shardbench.report.page import html_report
    from shardbench.report.text import text_report
    from shardbench.summary.directory import read_directory

    if options.directory.is_file():
        raise UsageError(f"{options.directory} is not a folder; pass the folder that holds the .h5 files")
    if options.output.is_dir() or not options.output.parent.is_dir():  # better said before all files are read
        problem = "is a folder" if options.output.is_dir() else "lies in a folder that does not exist"
        raise UsageError(f"-o {options.output} {problem}; pass the path of a file")
    request = _request(options)
    found = read_directory(options.directory)
    print(text_report(found), end="\n\n")
    if not found.launches and not found.bandwidths:
        reason = f"none of the {len(found.excluded)} files below {options.directory} can be used"
        raise RunError(f"{reason}; see the reasons above")
    predicted = _predicted(options.directory, found.studies, request) if request else []
    page = html_report(found, predicted, options.gpu_memory)
    try:
        options.output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"{options.output} cannot be written ({error.strerror}); pass another path with -o"
        ) from error
    print(options.output)
    return 0


def _request(options: argparse.Namespace) -> "Request | None":
    """What `--predict-to` and its own options ask for.

    Raises:
        UsageError: what no file could mend.
    """
    if options.predict_to is None:
        own = {"--bin": options.bin, "--files-only": options.files_only, "--sim-bin": options.sim_bin}
        if given := [name for name, value in own.items() if value]:
            raise UsageError(
                f"{given[0]} is about predictions, and none is asked for; pass --predict-to N, too"
            )
        return None
    if options.predict_to < 1:
        raise UsageError(f"--predict-to {options.predict_to} is no number of ranks; pass 1 or more")
    from shardbench.report.predictions import Request
    from shardbench.sweep.launchers import find_installation

    binaries = find_installation(options.bin).binaries
    return Request(options.predict_to, binaries, options.files_only, options.sim_bin)


def _predicted(directory: Path, studies: "Sequence[Study]", request: "Request") -> "list[PredictedPoint]":
    from shardbench.report.predictions import predicted_points

    points, notes = predicted_points(directory, studies, request)
    for note in notes:
        print(f"shardbench report: {note}", file=sys.stderr)
    return points
