"""How long runs took, how long the others will, and a line that says so."""

import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardbench.sweep.plan import Plan
from shardbench.sweep.point import MODEL_DIMENSIONS, Point, Run

BAR_WIDTH = 24


@dataclass
class Durations:
    """What finished runs took, in seconds, and what that says about others.

    A point takes as long as its other launches. What one takes that was never launched follows from its work
    and from runs of its class: real or simulated, one model, one way to compute.
    """

    plans: Mapping[str, Plan]
    _of_point: dict[str, list[float]] = field(default_factory=dict)
    _of_class: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, point: Point, seconds: float) -> None:
        """A run of that point has finished."""
        self._of_point.setdefault(point.hash, []).append(seconds)
        work = _work(point, self.plans[point.hash])
        self._of_class.setdefault(_class(point), []).append((work, seconds))

    def expected(self, point: Point) -> float | None:
        """Seconds; None where nothing comparable has finished yet."""
        if known := self._of_point.get(point.hash):
            return statistics.median(known)
        if like := self._of_class.get(_class(point)):
            return _extrapolated(like, _work(point, self.plans[point.hash]))
        return None

    def left(self, runs: Iterable[Run]) -> str:
        """What all of these will take, in words."""
        expected = [self.expected(run.point) for run in runs]
        known = [seconds for seconds in expected if seconds is not None]
        unknown = f"{len(expected) - len(known)} of unknown length"
        if not known:
            return unknown if expected else "nothing left"
        return f"about {duration(sum(known))} left" + (
            f" and {unknown}" if len(known) < len(expected) else ""
        )


def _extrapolated(known: Sequence[tuple[float, float]], work: float) -> float:
    """From pairs of work and seconds: a start and a part for work where they show both, else in proportion.

    Work may be 0: of `collectives` where no size has a block for each rank.
    """
    works, seconds = zip(*known, strict=True)
    if len(set(works)) > 1:
        slope, start = statistics.linear_regression(works, seconds)
        if slope >= 0 and start >= 0:
            return float(start + slope * work)
    rates = [s / w for w, s in known if w > 0]
    return float(statistics.median(rates) * work if rates else statistics.median(seconds))


def _class(point: Point) -> str:
    """Runs whose durations depend on their work alone."""
    telling = ["algorithm", "progress", "compute"]
    if point.machine is None:
        telling += ["calibration", "flops", *MODEL_DIMENSIONS]
    options = [f"{name}={point.options.get(name)}" for name in telling]
    subject = point.scenario if point.is_benchmark else "simulated" if point.machine else str(point.model)
    return " ".join([subject, *options])


def _work(point: Point, plan: Plan) -> float:
    """In units of its class. Simulating costs host time by the operation; real ranks compute, or move bytes."""
    return float(plan.operations * point.ranks) if point.machine else plan.work


def duration(seconds: float) -> str:
    """Rounded as far as a reader cares: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


END_OF_LOG = re.compile(r"^shardbench sweep: (.+) after ([0-9.]+) s, exit code (-?\d+)$")


def note_end(log: Path, outcome: str, seconds: float, code: int) -> None:
    """The last line of a run's log, which the next sweep reads."""
    with log.open("ab+") as file:
        file.seek(-1, os.SEEK_END)
        end = b"" if file.read() == b"\n" else b"\n"
        file.write(end + f"shardbench sweep: {outcome} after {seconds:.3f} s, exit code {code}\n".encode())


def noted_seconds(log: Path) -> float | None:
    """What a run took that ended completely, as its log says."""
    lines = last_lines(log)
    ended = END_OF_LOG.match(lines[-1]) if lines else None
    return float(ended[2]) if ended and ended[1] == "complete" else None


def last_lines(log: Path) -> list[str]:
    """The end of a log, however long it is, without empty lines."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 65536))
            return [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return []


class Display:
    """One line for each run; on a terminal also a bar that moves."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._moves = sys.stdout.isatty()

    @property
    def period_s(self) -> float | None:
        """How often `tick` should be called; None for never."""
        return 1.0 if self._moves else None

    def start(self, name: str, left: str) -> None:
        """A run begins."""
        self._number += 1
        self._name, self._left, self._begin = name, left, time.monotonic()
        if self._moves:
            self.tick()
        else:
            self._print(f"{self._count()} {name} ({left}) ... ")

    def tick(self) -> None:
        """The run goes on."""
        filled = BAR_WIDTH * (self._number - 1) // self._total
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        running = duration(time.monotonic() - self._begin)
        line = f"[{bar}] {self._count()} {self._name}, {running}; {self._left}"
        # A line that wraps could not be drawn over.
        self._print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")

    def end(self, outcome: str) -> None:
        """The run has ended."""
        seconds = duration(time.monotonic() - self._begin)
        if self._moves:
            self._print(f"\r\x1b[K{self._count()} {self._name}: {outcome} ({seconds})\n")
        else:
            self._print(f"{outcome} ({seconds})\n")

    def _count(self) -> str:
        return f"{self._number:{len(str(self._total))}d}/{self._total}"

    @staticmethod
    def _print(text: str) -> None:
        print(text, end="", flush=True)
