"""`shardbench sweep`."""

import argparse
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from shardbench.errors import RunError, UsageError
from shardbench.sweep.launchers import Batch, find_installation
from shardbench.sweep.point import Run
from shardbench.sweep.run import StopRequest, dry_run, prepare, run_sweep
from shardbench.sweep.study import LAUNCHERS, Study, read_study

DESCRIPTION = (
    "Runs what a study lists, and leaves out what is done. A study is a TOML file with the keys scenario, ranks, "
    "model, options, repetitions, launcher and output; lists make a grid (docs/sweep.md). The same command "
    "continues a sweep that was stopped."
)


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Declares the command's options."""
    parser = add(
        "sweep",
        help="run a study: a grid of configurations, resumed where it stopped",
        description=DESCRIPTION,
    )
    parser.add_argument("study", type=Path, metavar="STUDY", help="a .toml file; several are in jobs/studies")
    parser.add_argument("--launcher", choices=LAUNCHERS, help="start every grid of the study with this one")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would run, with memory, trace size and time"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="PATTERN",
        help="only points whose name (see --dry-run) matches, as in 'zero3_*_n8_*'; may be repeated",
    )
    parser.add_argument(
        "--bin",
        type=Path,
        metavar="DIR",
        help="the executables (default: SHARDBENCH_BIN, else build/release/bin)",
    )
    parser.add_argument(
        "--parallel", type=_positive, metavar="M", help="with sbatch: array elements at a time"
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="with sbatch: an option of it, as in --sbatch=--ntasks-per-node=8; may be repeated",
    )
    parser.add_argument(
        "--element", type=int, metavar="I", help="only this run; what jobs/sweep.sbatch passes"
    )
    parser.set_defaults(run=sweep)


def sweep(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        UsageError, RunError: see there.
    """
    study = read_study(options.study, options.launcher)
    runs = _chosen(study, options.only, options.element)
    with StopRequest() as stop:
        prepared = prepare(study, runs, find_installation(options.bin))
        if stop.signal:
            return 128 + stop.signal
        try:
            if options.dry_run:
                dry_run(prepared)
                return 0
            return run_sweep(prepared, stop, Batch(options.parallel, options.sbatch))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise RunError(
                f"{error.filename or study.output} cannot be written ({error.strerror}); make room, or change output"
            ) from error


def _chosen(study: Study, patterns: Sequence[str] | None, element: int | None) -> list[Run]:
    runs = list(study.runs)
    if element is not None:
        if not 0 <= element < len(runs):
            raise UsageError(
                f"--element {element} is not in {study.path}, whose runs are 0 to {len(runs) - 1}; submit it anew"
            )
        runs = [runs[element]]
    if patterns:
        runs = [run for run in runs if any(fnmatchcase(run.point.name, pattern) for pattern in patterns)]
        if not runs:
            raise UsageError(
                f"--only {' '.join(patterns)} matches no point of {study.path}; --dry-run lists them"
            )
    return runs


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)
