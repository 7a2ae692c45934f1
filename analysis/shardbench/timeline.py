"""`shardbench timeline`."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shardbench.errors import RunError, UsageError
from shardbench.read import TraceError

DESCRIPTION = (
    "Shows what each rank did when. A .json is in the Trace Event Format, for https://ui.perfetto.dev and "
    "chrome://tracing: a process for each rank, threads for compute and communication, counters of memory. A .png or "
    ".svg is a picture of one step."
)
JSON, PICTURES = ".json", (".png", ".svg")


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Declares the command's options."""
    parser = add(
        "timeline",
        allow_abbrev=False,
        help="show the events of one file in a trace viewer, or draw one step",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="an HDF5 trace file, of a run with --trace events"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=_output,
        default=Path("trace.json"),
        metavar="FILE",
        help="what to write: .json, .png or .svg (default: trace.json)",
    )
    parser.add_argument(
        "--steps",
        type=_steps,
        metavar="timed|last|all|I|I-J",
        help="which steps; last is the last timed one, all includes warm-up (default: timed; of a picture: last)",
    )
    parser.add_argument(
        "--ranks", type=_ranks, default="all", metavar="all|I,J-K,...", help="which ranks (default: all)"
    )
    parser.set_defaults(run=timeline)


def timeline(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        UsageError, RunError: see there.
    """
    # Tables and figures take long to load.
    from shardbench.extract import LAST, TIMED, extract

    is_picture = options.output.suffix in PICTURES
    try:
        shown = extract(options.file, options.steps or (LAST if is_picture else TIMED), options.ranks)
        with _replacing(options.output) as path:
            if is_picture:
                from shardbench.gantt import draw_step

                notes = draw_step(shown, path, options.output.suffix[1:])
            else:
                from shardbench.trace_events import write_trace_events

                notes = []
                with path.open("w", encoding="utf-8") as out:
                    write_trace_events(shown, out)
    except TraceError as error:
        raise RunError(str(error)) from error
    if shown.header.incomplete:
        notes = [f"{options.file} is {shown.header.incomplete}; shown is what it holds", *notes]
    for note in notes:
        print(f"shardbench timeline: {note}", file=sys.stderr)
    print(options.output)
    return 0


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path beside to write to, which then takes the place of `path`: nobody sees half a file.

    Raises:
        RunError: it cannot be written.
    """
    partial = path.with_name(f".shardbench-{os.getpid()}{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror}); make room, or pass another path with -o"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _output(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (JSON, *PICTURES):
        raise argparse.ArgumentTypeError(f"{text} does not end in {JSON}, {' or '.join(PICTURES)}")
    return path


def _steps(text: str) -> str | list[range]:
    return text if text in ("timed", "last", "all") else [_range(text)]


def _ranks(text: str) -> str | list[range]:
    return text if text == "all" else [_range(part) for part in text.split(",")]


def _range(text: str) -> range:
    found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is neither a number nor a range as in 3-7")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise argparse.ArgumentTypeError(f"{text} ends before it begins")
    return range(first, last + 1)
