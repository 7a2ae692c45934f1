"""Simulations on few nodes of what a prediction needs to know: `advise`'s candidates, and small collectives.

Large models on few nodes communicate in large pieces only. At large N pieces are small, and a library chooses other ways for
those, of other latency; small pieces on few nodes show these, too.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import lcm
from pathlib import Path

from shardbench.bar import bar
from shardbench.errors import RunError
from shardbench.predict.alphabeta import FEWEST_GROUPS
from shardbench.predict.model import Measured, measure
from shardbench.processes import Together, ends_with_this_process
from shardbench.read import read_trace

NODES = tuple(range(2, 2 + FEWEST_GROUPS))
"""On so many nodes: base, alpha and beta can be told apart."""

NODES_OF_ONE_RANK = (4, 8, 16, 24, 32)
"""On so many nodes where each has one rank: there NCCL knows one more way (PAT), which few nodes do not show."""

SHRUNK_HEADS = (2, 16)
"""Head sizes of small models whose tensor-parallel collectives are small."""

PATIENCE_S = 600
"""A rehearsal takes seconds to a minute; only a hang is to be found here."""


@dataclass(frozen=True)
class Rehearsal:
    """One simulation: what `shardbench simulate` gets."""

    scenario: str
    ranks: int
    options: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.scenario} {' '.join(self.options)} on {self.ranks} ranks"


@dataclass(frozen=True)
class Stage:
    """Where rehearsals take place. `platform`: as `shardbench simulate` takes it, --set included."""

    platform: tuple[str, ...]
    sim_bin: Path | None


def small_collectives(tensor: Iterable[int], per_node: int, algorithm: str = "nccl") -> Iterator[Rehearsal]:
    """Small pieces on the groups of meshes with these tp, on nodes of `per_node` ranks."""
    choice = f"--algorithm={algorithm}"
    for tp in sorted(set(tensor)):
        if tp == 1:
            sizes = ("-b", "256", "-e", "4G", "-f", "4", "-d", "all", "-n", "1", "-w", "0", "-c", "0")
            for nodes in NODES if per_node > 1 else NODES_OF_ONE_RANK:
                yield Rehearsal("collectives", nodes * per_node, (*sizes, choice))
            continue
        for nodes in NODES:
            for size in SHRUNK_HEADS:
                hidden = 8 * tp * size
                shape = {"layers": 2, "hidden": hidden, "heads": 8 * tp, "kv-heads": tp, "ffn": 3 * hidden}
                shape |= {"vocab": 4 * hidden, "seq": 64, "tp": tp, "steps": 1, "warmup": 1}
                options = (f"--{name}={value}" for name, value in shape.items())
                yield Rehearsal(
                    "mesh2d", nodes * lcm(per_node, tp), (*options, "--sequence-parallel", choice)
                )


def rehearse(rehearsals: Sequence[Rehearsal], stage: Stage) -> dict[Rehearsal, Measured]:
    """Simulates each once, as many at a time as there are CPUs.

    Raises:
        RunError: one failed.
    """
    distinct = list(dict.fromkeys(rehearsals))
    with tempfile.TemporaryDirectory(prefix="shardbench-rehearsal-") as folder:
        processes = Together()

        def rehearsed(numbered: tuple[int, Rehearsal]) -> Measured:
            index, rehearsal = numbered
            return _simulate(rehearsal, stage, Path(folder) / f"{index}.h5", processes)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            try:
                done = bar(pool.map(rehearsed, enumerate(distinct)), "rehearsal", len(distinct))
                return dict(zip(distinct, done))
            except BaseException:  # which nobody wants to hear of only when the others are done
                pool.shutdown(wait=False, cancel_futures=True)
                processes.terminate()
                raise


def _simulate(rehearsal: Rehearsal, stage: Stage, output: Path, processes: Together) -> Measured:
    command = [sys.executable, "-m", "shardbench", "simulate", rehearsal.scenario]
    command += [f"--ranks={rehearsal.ranks}", *stage.platform]
    command += [f"--sim-bin={stage.sim_bin}"] if stage.sim_bin else []
    with subprocess.Popen(
        [*command, "--", *rehearsal.options, f"--output={output}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=ends_with_this_process(signal.SIGTERM),
    ) as process:
        processes.add(process)
        try:
            _, said = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            said = f"no end after {PATIENCE_S} s"
    if process.returncode:
        last = " ".join(said.split()) or f"exit code {process.returncode}"
        raise RunError(f"the rehearsal {rehearsal} failed: {last}")
    trace = read_trace(output)
    output.unlink()
    return measure(trace, str(rehearsal))
