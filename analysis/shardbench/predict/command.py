"""`shardbench fit`, `predict`, `advise`: their options. What they need loads when they run."""

import argparse
from collections.abc import Callable
from pathlib import Path

from shardbench.arguments import memory_size
from shardbench.platforms import shipped_names

ADVICE = (
    "Asks the executables what each stage and mesh needs at N ranks, simulates those that fit on two to four nodes of the "
    "platform, and extrapolates. Memory is what this benchmark tracks, with activations in fp32; what a framework's "
    "allocator, CUDA and NCCL take comes on top, so pass what is left for the model. Options for all scenarios follow after --."
)


def add_parsers(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Declares the three commands."""
    _add_fit(add)
    _add_predict(add)
    _add_advise(add)


def _add_fit(add: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add(
        "fit",
        allow_abbrev=False,
        help="alpha and beta of each collective, from traces and from the program collectives",
        description="Fits seconds = base + alpha * rounds + beta * volume to the collectives of all files below DIR, for each "
        "collective, algorithm and kind of group. In brackets: 95 % intervals.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the HDF5 files are")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.set_defaults(run=_fit)


def _add_predict(add: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add(
        "predict",
        allow_abbrev=False,
        help="step time, exposed communication and memory at larger N, from small ones",
        description="Fits collectives and looks up compute in the files below DIR, asks the executables for the schedule at each "
        "N (--plan), and replays it. Configurations need files with events (--trace events), on two nodes or more.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the HDF5 files are")
    parser.add_argument(
        "--to",
        type=int,
        required=True,
        metavar="N",
        help="the largest N; before it each doubling of the smallest",
    )
    parser.add_argument(
        "--gpu-memory",
        type=memory_size,
        metavar="SIZE",
        help="name the fastest that fits, as in 80GB or 64GiB",
    )
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="R", help="ranks that share a node (default: as in the files)"
    )
    parser.add_argument(
        "--bin",
        type=Path,
        metavar="DIR",
        help="the executables (default: SHARDBENCH_BIN, else build/release/bin)",
    )
    parser.add_argument(
        "--files-only",
        action="store_true",
        help="simulate nothing, where files of simulated machines lack small collectives",
    )
    parser.add_argument("--sim-bin", type=Path, metavar="DIR", help="the simulated ones, as for simulate")
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="default: text")
    parser.set_defaults(run=_predict)


def _add_advise(add: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add(
        "advise",
        allow_abbrev=False,
        help="the best stage, mesh and prefetch for a memory and a number of ranks",
        description=ADVICE,
        usage="%(prog)s --model NAME --gpu-memory SIZE --ranks N [--platform NAME|FILE] [--set KEY=VALUE]... -- [options]",
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="a preset, such as 70b")
    parser.add_argument(
        "--gpu-memory", required=True, type=memory_size, metavar="SIZE", help="as in 80GB or 64GiB"
    )
    parser.add_argument("--ranks", required=True, type=int, metavar="N", help="GPUs, one a rank")
    parser.add_argument(
        "--platform",
        default="h100-fat-tree",
        metavar="NAME|FILE",
        help=f"the machine: {', '.join(shipped_names())}, or a .toml file (default: h100-fat-tree)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a figure of the platform; may be repeated",
    )
    parser.add_argument(
        "--bin",
        type=Path,
        metavar="DIR",
        help="the executables (default: SHARDBENCH_BIN, else build/release/bin)",
    )
    parser.add_argument("--sim-bin", type=Path, metavar="DIR", help="the simulated ones, as for simulate")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.set_defaults(run=_advise)


def _fit(options: argparse.Namespace) -> int:
    from shardbench.predict.show_fit import run

    return run(options)


def _predict(options: argparse.Namespace) -> int:
    from shardbench.predict.show_predictions import run

    return run(options)


def _advise(options: argparse.Namespace) -> int:
    from shardbench.predict.show_advice import run

    return run(options)
