"""`shardbench compare`."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

DESCRIPTION = (
    "Compares the runs of B with those of A, the base, point by point: step time, exposed communication and peak memory, "
    "with nonparametric 95 % intervals of the ratio. Exit code 0: no regression shown; 1: at least one point of B is "
    "slower, needs more memory or fails its check or ledger, or one of its runs failed; 2: usage."
)


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Declares the command's options."""
    parser = add(
        "compare",
        help="say what differs between two sets of runs, and whether one regressed",
        description=DESCRIPTION,
    )
    parser.add_argument("a", type=Path, metavar="A", help="the base: a file, or a folder with *.h5 below")
    parser.add_argument("b", type=Path, metavar="B", help="what is compared with it, likewise")
    parser.add_argument(
        "--threshold",
        type=_share,
        default="0",
        metavar="PERCENT",
        help="how much slower the median step of a point may be without being a regression (default: 0)",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="what to print (default: text)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        UsageError: nothing can be compared.
    """
    from shardbench.compare.pairs import compare
    from shardbench.compare.show import as_json, as_text

    found = compare(options.a, options.b)
    show = {"text": as_text, "json": as_json}[options.format]
    print(show(found, options.threshold))
    return 1 if found.regressions(options.threshold) else 0


def _share(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text} is not a percentage from 0 on, such as 5 or 2.5")
    return float(text) / 100
