"""The command `shardbench`.

What only some commands need is imported where they run: plots and tables take longer to load than a small simulation runs.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

from shardbench import __version__, timeline
from shardbench.arguments import USAGE, Parser
from shardbench.compare import command as compare
from shardbench.errors import RunError, UsageError, refuse_other_than_file
from shardbench.export import command as export
from shardbench.platforms import load_platform, shipped_names
from shardbench.predict import command as predict
from shardbench.processes import Stopped, stoppable
from shardbench.read import SCHEMA_VERSION
from shardbench.report import command as report
from shardbench.simulate import BIN_VARIABLE, plan_simulation, simulate
from shardbench.sweep import command as sweep

DONE, FAILED = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 done, 1 failed, 2 usage."""
    own, passed_on = _split(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(own, argparse.Namespace(passed_on=passed_on))
    for stream in (sys.stdout, sys.stderr):
        # Names and units are UTF-8; a terminal that is not must not end the command.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with stoppable():
            code = int(options.run(options))
            print(
                end="", flush=True
            )  # what cannot be written is to be told here, not when the interpreter ends
            return code
    except UsageError as error:
        print(f"shardbench {options.command}: {error}", file=sys.stderr)
        return USAGE
    except RunError as error:
        print(f"shardbench {options.command}: {error}", file=sys.stderr)
        return FAILED
    except Stopped as stopped:
        print(f"shardbench {options.command}: stopped by {stopped}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader, for example head, has seen enough
        _discard_output()
        return FAILED
    except OSError as error:
        what = error.filename or "the output"
        reason = (
            f"{what} cannot be read or written ({error.strerror or error}); check its disk and permissions"
        )
        print(f"shardbench {options.command}: {reason}", file=sys.stderr)
        _discard_output()
        return FAILED


def _discard_output() -> None:
    """What is left in the buffer could not be written either."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """What is the command's own, and what comes after -- for the program that it starts."""
    if arguments[:1] not in (["simulate"], ["advise"]) or "--" not in arguments:
        return arguments, []
    end = arguments.index("--")
    return arguments[:end], list(arguments[end + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="shardbench",
        description="Runs studies of shardbench's scenarios and simulations of them; validates, compares, exports and "
        "reports on the HDF5 traces that they leave.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"shardbench {__version__} (reads schema version {SCHEMA_VERSION})",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    validate = commands.add_parser(
        "validate",
        help="check files against the schema and its invariants",
        description="Checks files against the schema and its invariants. Prints one line for each violated "
        "invariant; exit code 1 if there is any.",
    )
    validate.add_argument("files", nargs="+", type=Path, metavar="FILE", help="an HDF5 trace file")
    validate.set_defaults(run=_validate)
    report.add_parser(commands.add_parser)
    compare.add_parser(commands.add_parser)
    export.add_parser(commands.add_parser)
    _add_simulate(commands.add_parser)
    sweep.add_parser(commands.add_parser)
    predict.add_parsers(commands.add_parser)
    timeline.add_parser(commands.add_parser)
    return parser


def _add_simulate(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "simulate",
        help="run a scenario, or collectives alone, on a simulated machine",
        description="Runs the code of a scenario, or of the program `collectives`, on a simulated machine (SimGrid). "
        "Time is modelled; bytes and collectives are those of a real run. Options of the program follow after --.",
        usage="%(prog)s SCENARIO --ranks N --platform NAME|FILE [--set KEY=VALUE]... [--sim-bin DIR] -- [options]",
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="ddp, zero1, zero2, zero3, mesh2d, collectives")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="simulated ranks, one a GPU")
    platforms = ", ".join(shipped_names())
    parser.add_argument(
        "--platform", required=True, metavar="NAME|FILE", help=f"the machine: {platforms}, or a .toml file"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a figure of the platform, for example node.nic_bandwidth=25e9; may be repeated",
    )
    parser.add_argument(
        "--sim-bin",
        type=Path,
        metavar="DIR",
        help=f"where the simulated scenarios are (default: {BIN_VARIABLE}, else build/sim/bin of the checkout)",
    )
    parser.set_defaults(run=_simulate)


def _simulate(options: argparse.Namespace) -> int:
    platform = load_platform(options.platform, options.set)
    return simulate(
        plan_simulation(options.scenario, options.ranks, platform, options.passed_on, options.sim_bin)
    )


def _validate(options: argparse.Namespace) -> int:
    from shardbench.validate import file_violations

    for path in options.files:
        refuse_other_than_file(path)
    violations_of = {path: file_violations(path) for path in options.files}
    for path, violations in violations_of.items():
        if not violations:
            print(f"{path}: valid")
        for violation in violations:
            print(f"{path}: {violation}")
    return FAILED if any(violations_of.values()) else DONE
