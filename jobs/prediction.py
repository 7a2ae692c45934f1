#!/usr/bin/env python3
"""How well does `shardbench predict` tell four hosts from one and two? Measures it on hosts that are network namespaces.

Compute is imitated by sleeping, so that four "hosts" do not share cores; messages pass a link of limited rate
(docs/overlap.md says why). Prints a table: predicted from N = 1 and 2, measured at N = 4. As root:
build/venv/bin/python jobs/prediction.py
build/venv/bin/python jobs/prediction.py --algorithm direct    # where more than two hosts meet on a link: worse
Exit code 77: such a link cannot be made here; the message says why. Exit code 1: a prediction is off by more than 15 %.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "analysis"), str(ROOT / "tests/link")]

from network import NetworkError, RateLimitedNetwork, reason_unavailable  # noqa: E402
from shardbench.predict.model import Measured, measure  # noqa: E402
from shardbench.predict.outlook import outlooks_of  # noqa: E402
from shardbench.read import read_trace  # noqa: E402
from shardbench.units import MILLISECONDS, number, percent, text_table  # noqa: E402

SKIPPED = 77  # as jobs/overlap.py
PROMISED = 0.15
SIZES = (1, 2, 4)
RUN_LIMIT_S = 120.0

# Blocks of 852 kB, as in jobs/overlap.py, and a speed at which compute takes about as long as communication.
MODEL = ("--layers", "4", "--hidden", "128", "--heads", "4", "--kv-heads", "4", "--ffn", "384", "--vocab", "64", "--seq", "32",
         "--param-dtype", "fp32", "--compute", "timed", "--flops", "8e8", "--threads", "1", "--overwrite")  # fmt: skip

CONFIGURATIONS = {
    "ddp": ("ddp",),
    "zero1": ("zero1",),
    "zero2": ("zero2",),
    "zero3, prefetch 0": ("zero3", "--prefetch", "0"),
    "zero3, prefetch 1": ("zero3", "--prefetch", "1"),
}


class Failure(Exception):
    """A run failed."""


def run(
    network: RateLimitedNetwork, options: argparse.Namespace, configuration: str, ranks: int, launch: int
) -> Measured:
    scenario, *own = CONFIGURATIONS[configuration]
    path = options.output / f"{configuration.replace(', ', '_').replace(' ', '')}_n{ranks}_l{launch}.h5"
    program = [str(options.bin / scenario), *MODEL, *own, "--algorithm", options.algorithm]
    program += ["-n", str(options.steps), "-w", "1", "-o", str(path)]
    command = network.command(1, program, options.mpiexec, RUN_LIMIT_S)
    environment = dict(os.environ) | network.environment(1)
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(
            f"{' '.join(program)} on {ranks} hosts ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return measure(read_trace(path), path.name)


def rows(measured: dict[str, list[Measured]], binaries: Path) -> list[tuple[str, float, float, float, float]]:
    """Configuration, and of N = 4 the measured step, the predicted one and its interval, seconds."""
    small = [file for files in measured.values() for file in files if file.ranks < max(SIZES)]
    outlooks, refusals = outlooks_of(small, max(SIZES), binaries)
    if refusals:
        raise Failure("\n".join(refusals))
    by_file = {file.name: outlook for outlook in outlooks for file in outlook.configuration.files}
    found = []
    for name, files in measured.items():
        step_s = statistics.median(file.step_s for file in files if file.ranks == max(SIZES))
        prediction = by_file[next(file.name for file in files if file.ranks < max(SIZES))].predictions[-1]
        found.append((name, step_s, prediction.step_s, prediction.low_s, prediction.high_s))
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--bin", type=Path, default=ROOT / "build/release/bin", help="where the scenarios are (%(default)s)"
    )
    parser.add_argument("--mpiexec", default="mpiexec", help="MPICH's launcher (%(default)s)")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "results/prediction", help="for the files (%(default)s)"
    )
    parser.add_argument(
        "--algorithm", choices=("ring", "direct"), default="ring", help="of the collectives (%(default)s)"
    )
    parser.add_argument("--launches", type=int, default=2, help="how often each point is launched (%(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a launch (%(default)s)")
    parser.add_argument("--rate", type=float, default=200.0, help="of each host's link, Mbit/s (%(default)s)")
    options = parser.parse_args()
    if min(options.launches, options.steps, options.rate) <= 0:
        parser.error("launches, steps and rate must be above 0; choose larger numbers")
    return options


def main() -> int:
    options = parse()
    if reason := reason_unavailable(options.mpiexec):
        print(f"prediction: skipped: {reason}", file=sys.stderr)
        return SKIPPED
    options.output.mkdir(parents=True, exist_ok=True)
    measured: dict[str, list[Measured]] = {name: [] for name in CONFIGURATIONS}
    try:
        for launch in range(1, options.launches + 1):
            for ranks in SIZES:
                with RateLimitedNetwork(ranks, options.rate) as network:
                    for name in CONFIGURATIONS:
                        print(f"prediction: launch {launch}, {ranks} hosts, {name}", file=sys.stderr)
                        measured[name].append(run(network, options, name, ranks, launch))
        found = rows(measured, options.bin)
    except (Failure, NetworkError) as error:
        print(f"prediction: {error}", file=sys.stderr)
        return 1
    table = [("configuration", "measured ms", "predicted ms", "95 % interval", "error")]
    for name, step_s, predicted_s, low_s, high_s in found:
        step, predicted, low, high = (number(s * MILLISECONDS, 3) for s in (step_s, predicted_s, low_s, high_s))
        table.append((name, step, predicted, f"{low} – {high}", percent(predicted_s / step_s - 1.0)))
    print(text_table(table, table[0][1:]))
    return int(any(abs(predicted_s / step_s - 1.0) > PROMISED for _, step_s, predicted_s, *_ in found))


if __name__ == "__main__":
    sys.exit(main())
