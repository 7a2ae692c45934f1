"""Runs a scenario under SimGrid's MPI simulator SMPI, on a machine that a platform describes.

smpirun answers 0 even when the simulated ranks deadlocked or called MPI_Abort. Whether a run succeeded is
therefore decided by the file that it leaves: complete or not.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from types import FrameType

from shardbench.errors import UsageError
from shardbench.platforms import Platform
from shardbench.processes import ends_with_this_process
from shardbench.read import TraceError, read_header

CHECKOUT = Path(__file__).resolve().parents[2]
BIN_VARIABLE = "SHARDBENCH_SIM_BIN"
LOADER = "libshardbench_platform.so"

DONE, FAILED, USAGE, CHECK_FAILED = 0, 1, 2, 3
"""The executables' exit codes."""

FLAGS = (
    # Times come from the platform alone, not from what SMPI calibrated for another machine.
    "network/model:SMPI",
    "smpi/bw-factor:0:1",
    "smpi/lat-factor:0:1",
    "smpi/host-speed:1Gf",
    "smpi/simulate-computation:no",
    # A message's acknowledgements take no bandwidth, its TCP window never limits it, latency does not lower its share.
    "network/crosstraffic:0",
    "network/TCP-gamma:1e15",
    "network/weight-S:0",
    # A poll costs 0.1 us each time; by default SMPI makes each one dearer than the last.
    "smpi/test:1e-7",
    "smpi/grow-injected-times:no",
    # Ranks share nothing that must be kept apart: the sources have no mutable globals.
    "smpi/privatization:no",
    # KiB a rank; pages are only taken when they are used.
    "contexts/stack-size:1024",
)
"""SimGrid's options; docs/simulation.md says what they change."""


# SMPI's line for each rank whose main function did not return 0.
_RETURNED = re.compile(rb"SMPI process did not return 0\. Return value : (\d+)")


class SimulationError(UsageError):
    """A request that cannot be simulated: problem, reason, what to do, in one line."""


@dataclass(frozen=True)
class Simulation:
    """What is to be simulated. `output` is where `options` send the trace."""

    scenario: str
    ranks: int
    platform: Platform
    options: Sequence[str]
    output: Path
    bin: Path


def plan_simulation(
    scenario: str, ranks: int, platform: Platform, options: Sequence[str], sim_bin: Path | None = None
) -> Simulation:
    """Checks a request and fills in what it leaves open.

    Raises:
        SimulationError: it cannot be simulated.
    """
    if ranks < 1:
        raise SimulationError(f"--ranks {ranks} is no number of ranks; pass 1 or more")
    folder = sim_bin or Path(os.environ.get(BIN_VARIABLE) or CHECKOUT / "build/sim/bin")
    _check_built(folder, scenario)
    for option in options:
        _check_option(scenario, option)
    complete = list(options)
    if not any(re.match(r"--ranks(=|$)", option) for option in options):
        complete += ["--ranks", str(ranks)]
    output = _output_among(options)
    if output is None:
        output = _default_output(scenario, ranks)
        complete += ["--output", str(output)]
    return Simulation(scenario, ranks, platform, complete, output, folder)


def simulate(simulation: Simulation) -> int:
    """Runs it, passing on what it prints and the signals that stop it. Returns an exit code."""
    before = _identity(simulation.output)
    with tempfile.TemporaryDirectory(prefix="shardbench-sim-") as folder:
        codes, signalled = _run(simulation, Path(folder))
    code, problem = _verdict(simulation.output, before, codes, signalled)
    if problem:
        print(f"shardbench simulate: {problem}", file=sys.stderr)
    return code


def _check_built(folder: Path, scenario: str) -> None:
    if shutil.which("smpirun") is None:
        raise SimulationError("smpirun is not installed; it comes with SimGrid (Debian: libsimgrid-dev)")
    built = sorted(path.name for path in folder.glob("*") if path.is_file())
    if not built or not (folder.parent / "lib" / LOADER).is_file():
        raise SimulationError(
            f"no simulated scenarios in {folder}; build them with cmake --preset sim && cmake --build --preset sim "
            f"(make build), or say where they are with --sim-bin or {BIN_VARIABLE}"
        )
    if scenario not in built:
        raise SimulationError(
            f"there is no scenario '{scenario}' in {folder}; choose one of {', '.join(built)}"
        )


def _output_among(options: Sequence[str]) -> Path | None:
    """The file that -o or --output names. Whether that is said well is for the scenario to judge."""
    for word, following in pairwise([*options, ""]):
        if word in ("-o", "--output"):
            return Path(following) if following else None
        if match := re.match(r"(?:--output=|-o)(.+)", word):
            return Path(match[1])
    return None


def _check_option(scenario: str, option: str) -> None:
    if option in ("--plan", "--help", "-h", "--version"):
        raise SimulationError(
            f"{option} simulates nothing; ask the executable itself: build/release/bin/{scenario} {option}"
        )
    if option.startswith(("--cfg=", "--log=")):
        raise SimulationError(f"{option} would go to SimGrid, and change times unseen; leave it out")
    _check_word(option)


def _check_word(word: str) -> None:
    if not word or re.search(r"[\s*?\[]", word):
        raise SimulationError(
            f"the argument '{word}' would not arrive as one word, because smpirun splits its program's arguments at "
            "spaces and expands * ? [; use another name or path"
        )


def _default_output(scenario: str, ranks: int) -> Path:
    now = datetime.now(timezone.utc)
    return Path(f"{scenario}_n{ranks}_{now:%Y%m%dT%H%M%SZ}_sim.h5")


def _command(simulation: Simulation, folder: Path) -> list[str]:
    return [
        "smpirun",
        "-quiet",
        "--log=root.thresh:warning",
        *(f"--cfg={flag}" for flag in FLAGS),
        *("-platform", str((simulation.bin.parent / "lib" / LOADER).resolve())),
        *("-hostfile", str(folder / "hosts")),
        *("-np", str(simulation.ranks)),
        str((simulation.bin / simulation.scenario).resolve()),
        *simulation.options,
    ]


def _environment(simulation: Simulation, folder: Path) -> Mapping[str, str]:
    version = subprocess.run(
        ["smpirun", "-version"], capture_output=True, text=True, check=False
    ).stdout.strip()
    provenance = {
        "platform": simulation.platform.name,
        "changed": dict(simulation.platform.changed),
        "simgrid": version.removeprefix("SimGrid version "),
        "flags": list(FLAGS),
    }
    return {
        **os.environ,
        "SHARDBENCH_PLATFORM": str(folder / "platform.json"),
        "SHARDBENCH_SIMULATION": json.dumps(provenance),
    }


def _run(simulation: Simulation, folder: Path) -> tuple[set[int], signal.Signals | None]:
    """Returns the exit codes other than 0 of its ranks, and the signal that it was stopped by."""
    _check_word(str(folder))
    description = simulation.platform.description(simulation.ranks)
    (folder / "platform.json").write_text(json.dumps(description), encoding="utf-8")
    hosts = "".join(f"{host}\n" for host in simulation.platform.hosts(simulation.ranks))
    (folder / "hosts").write_text(hosts, encoding="utf-8")
    process = subprocess.Popen(
        _command(simulation, folder),
        env=_environment(simulation, folder),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # A group of its own, so that a signal reaches the simulator once and all of it.
        start_new_session=True,
        preexec_fn=ends_with_this_process(signal.SIGTERM),
    )
    codes = set()
    with _forwarded_signals(process) as received:
        assert process.stderr is not None
        for line in process.stderr:
            if match := _RETURNED.search(line):
                codes.add(int(match[1]))
            else:
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
        process.wait()
    return codes, received[0] if received else None


@contextmanager
def _forwarded_signals(process: subprocess.Popen[bytes]) -> Iterator[list[signal.Signals]]:
    """While this lasts, a request to stop ends the simulator and is noted; afterwards nothing of it is left."""
    received: list[signal.Signals] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number))
        process.terminate()  # smpirun passes it on

    previous = {
        number: signal.signal(number, stop)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    }
    try:
        yield received
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a file from the one that was there before."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _verdict(
    output: Path, before: tuple[int, int] | None, codes: set[int], signalled: signal.Signals | None
) -> tuple[int, str]:
    """The exit code, and what is wrong unless that is 0. `codes`: what ranks returned other than 0."""
    if signalled is not None:
        return FAILED, f"stopped by {signalled.name}; {output} is incomplete or missing"
    if USAGE in codes:
        return USAGE, "the scenario refused its options, see above"
    code = CHECK_FAILED if CHECK_FAILED in codes else FAILED
    if _identity(output) == before:
        return code, "the run ended before it wrote a file, see above"
    try:
        status = read_header(output).attributes.status
    except TraceError as error:
        # What ranks have said tells more, and the file may be that of another run, in which theirs was refused.
        return code, "the run failed, see above" if codes else str(error)
    if status != "complete":
        return code, f"the run did not come to its end: {output} has status '{status}'; see above"
    if code == CHECK_FAILED:
        return code, f"the run's own checks failed, see above; its file is {output}"
    if codes:
        return code, f"the run failed, see above; {output} is complete, but another run's"
    return DONE, ""
