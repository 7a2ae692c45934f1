"""The command lines that start a run. Lists of words, never text for a shell."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardbench.errors import RunError, UsageError
from shardbench.sweep.point import Run, text_of

CHECKOUT = Path(__file__).resolve().parents[3]

PASSED_TO_JOBS = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "MODULEPATH")
"""Of the environment a batch job gets these and what begins with SHARDBENCH_; the site file sets the rest."""


@dataclass(frozen=True)
class Installation:
    """Where the executables and the batch script are."""

    binaries: Path
    script: Path

    @property
    def mpiexec(self) -> str:
        """The launcher of the MPI that the executables were linked with."""
        if chosen := os.environ.get("MPIEXEC"):
            return chosen
        cache = self.binaries.parent / "CMakeCache.txt"
        text = cache.read_text(encoding="utf-8", errors="replace") if cache.is_file() else ""
        found = re.search(r"^MPIEXEC_EXECUTABLE:[A-Z]*=(.+)$", text, re.MULTILINE)
        return found[1] if found else "mpiexec"


def find_installation(binaries: Path | None) -> Installation:
    """The folder that was named, or SHARDBENCH_BIN, or the release build of this checkout.

    Raises:
        UsageError: there is no such folder.
    """
    chosen = binaries or Path(os.environ.get("SHARDBENCH_BIN") or CHECKOUT / "build/release/bin")
    if not chosen.is_dir():
        raise UsageError(f"{chosen} is no folder of executables; run make build, or pass --bin")
    return Installation(chosen.resolve(), CHECKOUT / "jobs/sweep.sbatch")


STOP = {"srun": signal.SIGUSR1}
"""What asks a launcher to let ranks finish their step and close the file; SIGTERM unless listed. srun passes on
what it gets, but for SIGTERM, at which it kills the ranks."""


def stop_signal(launcher: str) -> signal.Signals:
    """See `STOP`."""
    return STOP.get(launcher, signal.SIGTERM)


def command(run: Run, output: Path, installation: Installation) -> list[str]:
    """What starts a run with mpiexec, srun or the simulator."""
    point, ranks = run.point, str(run.point.ranks)
    target = ["--overwrite", f"--output={run.trace(output)}"]
    if point.machine:
        settings = [
            word
            for key, value in point.machine.overrides.items()
            for word in ("--set", f"{key}={text_of(value)}")
        ]
        simulate = [sys.executable, "-m", "shardbench", "simulate", point.scenario, "--ranks", ranks]
        return [*simulate, "--platform", point.machine.platform, *settings, "--", *point.arguments(), *target]
    program = [str(installation.binaries / point.scenario), *point.arguments(), f"--ranks={ranks}", *target]
    if run.launcher == "srun":
        mpi = os.environ.get("SLURM_MPI_TYPE", "pmi2")
        # Since 22.05 srun does not inherit the job's --cpus-per-task.
        cpus = point.options.get("threads") or os.environ.get("SLURM_CPUS_PER_TASK") or 1
        layout = [f"--mpi={mpi}", f"--ntasks={ranks}", f"--cpus-per-task={cpus}"]
        return ["srun", *layout, "--kill-on-bad-exit=1", "--export=ALL", *program]
    return [installation.mpiexec, "-n", ranks, *program]


@dataclass(frozen=True)
class Batch:
    """How arrays are submitted: elements at a time (None: as Slurm likes), further options of sbatch."""

    parallel: int | None = None
    options: Sequence[str] = ()


def submit(study: Path, elements: Sequence[int], ranks: int, batch: Batch, installation: Installation) -> str:
    """Submits the runs with these indices, all of so many ranks, as one job array; returns its id.

    Raises:
        RunError: sbatch is not there, or refuses.
    """
    array = index_set(elements) + (f"%{batch.parallel}" if batch.parallel else "")
    # Otherwise the script looks in the folder from which sbatch is called, which need not be the checkout.
    places = {"SHARDBENCH_ROOT": str(CHECKOUT), "SHARDBENCH_BIN": str(installation.binaries)}
    environment = os.environ | places
    names = [name for name in environment if name in PASSED_TO_JOBS or name.startswith("SHARDBENCH_")]
    layout = [f"--array={array}", f"--ntasks={ranks}", f"--export={','.join(sorted(names))}"]
    words = ["sbatch", "--parsable", *layout, *batch.options, str(installation.script), str(study)]
    try:
        answer = subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError as error:
        raise RunError(
            f"sbatch cannot be run ({error.strerror}); submit from a machine of the cluster"
        ) from error
    if answer.returncode:
        raise RunError(f"sbatch refused the array of {ranks} ranks: {' '.join(answer.stderr.split())}")
    return answer.stdout.strip()


def index_set(numbers: Sequence[int]) -> str:
    """As Slurm writes one: 0-2,5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans)
