"""The sweep itself: what is done, what is to do, and doing it."""

import hashlib
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from shardbench.errors import RunError, UsageError
from shardbench.processes import ends_with_this_process
from shardbench.read import Header, TraceError, read_header
from shardbench.sweep import launchers
from shardbench.sweep.claims import FOLDER, Claim, Owner, claim, is_claimed
from shardbench.sweep.plan import Plan, plan_all
from shardbench.sweep.point import MODEL_DIMENSIONS, Point, Run, points_of
from shardbench.sweep.progress import Display, Durations, duration, last_lines, note_end, noted_seconds
from shardbench.sweep.study import Study, read_study
from shardbench.units import bytes_text, plural, text_table

DONE, FAILED = 0, 1

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""SIGUSR1: what Slurm sends before a time limit."""


@dataclass(frozen=True)
class Sweep:
    """Some runs of a study, ready to go."""

    study: Study
    runs: Sequence[Run]
    plans: Mapping[str, Plan]
    installation: launchers.Installation
    durations: Durations

    @property
    def output(self) -> Path:
        """The folder of the traces."""
        return self.study.output


def prepare(study: Study, runs: Sequence[Run], installation: launchers.Installation) -> Sweep:
    """Asks the executables about all points, before any of them runs.

    Raises:
        UsageError: a point is refused.
    """
    plans = plan_all(points_of(runs), installation.binaries)
    durations = Durations(plans)
    for run in runs:
        if seconds := noted_seconds(run.log(study.output)):
            durations.add(run.point, seconds)
    return Sweep(study, runs, plans, installation, durations)


# What is done


def state_of(run: Run, plan: Plan, output: Path) -> str:
    """'done', or why the run is to be done.

    Raises:
        UsageError: the file that is there is not this study's.
    """
    path = run.trace(output)
    if not path.exists():
        return "to do"
    try:
        header = read_header(path)
    except TraceError:
        return "to do (damaged file)"
    for what, found, expected in _comparisons(run.point, plan, header):
        if found != expected:
            reason = f"{what} is {found} there and {expected} in the study"
            raise UsageError(f"{path} holds another configuration: {reason}; move that file away")
    if header.attributes.check == "failed":
        return "to do (failed check)"
    status = header.attributes.status
    return "done" if status == "complete" else f"to do ({'killed' if status == 'running' else status})"


def _comparisons(point: Point, plan: Plan, header: Header) -> list[tuple[str, object, object]]:
    """What the study says about a point: its name, as the file has it, as it must be."""
    attributes, config = header.attributes, header.config
    pairs: list[tuple[str, object, object]] = [
        ("scenario", attributes.scenario, point.scenario),
        ("the number of ranks", attributes.world_size, point.ranks),
        ("the number of parameters", attributes.psi, plan.psi),
        ("simulated", attributes.simulated, int(point.machine is not None)),
        ("model", config.options.get("model"), point.model),
    ]
    for name, value in point.options.items():
        if name in MODEL_DIMENSIONS:
            pairs.append((name, config.model.get(name.replace("-", "_")), value))
        elif name in plan.options:  # as the executable understands it: prefetch 1 is 1,1
            pairs.append((name, config.options.get(name), plan.options[name]))
    return pairs


# The dry run


def dry_run(sweep: Sweep) -> None:
    """Prints what would run, what it needs, and what is there already."""
    by_point: dict[str, list[Run]] = defaultdict(list)
    for run in sweep.runs:
        by_point[run.point.hash].append(run)
    states = {run.name: _state_or_running(sweep, run) for run in sweep.runs}
    headings = ("point", "N", "launcher", "launches", "peak memory/rank", "trace", "time", "state")
    rows = []
    for point in sweep.study.points:
        runs = by_point.get(point.hash)
        if not runs:
            continue
        plan = sweep.plans[point.hash]
        expected = sweep.durations.expected(point)
        rows.append(
            (
                point.name,
                str(point.ranks),
                runs[0].launcher,
                str(len(runs)),
                bytes_text(plan.peak_bytes),
                bytes_text(plan.trace_bytes(point.ranks)),
                duration(expected) if expected is not None else "unknown",
                _summary([states[run.name] for run in runs]),
            )
        )
    print(text_table([headings, *rows], headings[1:2] + headings[3:7]))
    to_do = [run for run in sweep.runs if states[run.name].startswith("to do")]
    size = sum(sweep.plans[run.point.hash].trace_bytes(run.point.ranks) for run in to_do)
    print(
        f"\n{sweep.study.name}: {plural(len(sweep.runs), 'run')} of {plural(len(rows), 'point')}, {len(to_do)} to do, "
        f"{sweep.durations.left(to_do)}, traces of {bytes_text(size)} in {sweep.output}"
    )
    print(
        "Memory is rank 0's tracked peak on paper; traces are estimated; times come from runs that have finished."
    )


def _state_or_running(sweep: Sweep, run: Run) -> str:
    if is_claimed(sweep.output, run.name):
        return "running"
    return state_of(run, sweep.plans[run.point.hash], sweep.output)


def _summary(states: Sequence[str]) -> str:
    if len(set(states)) == 1:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))


# Running


class StopRequest:
    """Signals that end the sweep: noted, and passed on to the launcher, whose ranks then close their file."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._launcher: subprocess.Popen[bytes] | None = None
        self._number = signal.SIGTERM
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._heard) for number in STOPPING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def pass_on_to(self, launcher: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """From now on a signal makes this process get that one; so does one that came just before."""
        self._launcher, self._number = launcher, number
        if self.signal:
            launcher.send_signal(number)

    def _heard(self, number: int, _: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        if self._launcher:
            # To a second one ranks react by not even finishing their step.
            self._launcher.send_signal(self._number)


@dataclass
class Outcome:
    """What has become of the runs that were to be done."""

    done: int = 0
    failed: list[str] = field(default_factory=list)
    elsewhere: list[tuple[Run, Owner]] = field(default_factory=list)


def run_sweep(sweep: Sweep, stop: StopRequest, batch: launchers.Batch | None = None) -> int:
    """Does what is to be done, one run after another, and returns the exit code.

    A run that fails does not end the sweep. Runs whose launcher is sbatch are submitted as `batch` says.

    Raises:
        UsageError: a file of another configuration is in the way.
        RunError: nothing can be run at all.
    """
    states = [state_of(run, sweep.plans[run.point.hash], sweep.output) for run in sweep.runs]
    to_do = [run for run, state in zip(sweep.runs, states, strict=True) if state != "done"]
    todo_text = f"{plural(len(sweep.runs), 'run')}, {len(to_do)} to do"
    print(f"{sweep.study.name}: {todo_text}, traces in {sweep.output}", flush=True)
    _submit(sweep, [run for run in to_do if run.launcher == "sbatch"], batch or launchers.Batch())
    here = [run for run in to_do if run.launcher != "sbatch"]
    outcome, display = Outcome(), Display(len(here))
    for number, run in enumerate(here):
        if stop.signal:
            break
        display.start(run.name, sweep.durations.left(here[number:]))
        display.end(_claimed_run(sweep, run, outcome, stop, display))
    # What others had may be done by now.
    outcome.elsewhere = [
        (run, owner)
        for run, owner in outcome.elsewhere
        if state_of(run, sweep.plans[run.point.hash], sweep.output) != "done"
    ]
    _report(outcome, len(here), stop.signal)
    if stop.signal:
        return 128 + stop.signal
    return FAILED if outcome.failed or outcome.elsewhere else DONE


def _claimed_run(sweep: Sweep, run: Run, outcome: Outcome, stop: StopRequest, display: Display) -> str:
    """Runs it unless another sweep does, and says how that went."""
    mine = claim(sweep.output, run.name)
    if not isinstance(mine, Claim):
        outcome.elsewhere.append((run, mine))
        return f"left to {mine}"
    try:
        if state_of(run, sweep.plans[run.point.hash], sweep.output) == "done":
            outcome.done += 1
            return "done by another sweep"
        code, seconds = _launch(sweep, run, mine, stop, display)
        reason = _failure(sweep, run, code)
        ended = "complete" if not reason else "stopped" if stop.signal else "failed"
        note_end(run.log(sweep.output), ended, seconds, code)
    finally:
        mine.release()
    if not reason:
        outcome.done += 1
        sweep.durations.add(run.point, seconds)
        return "done"
    if not stop.signal:
        outcome.failed.append(f"{run.name} failed: {reason}; its output is in {run.log(sweep.output)}")
    return f"{ended}: {reason}"


def _launch(sweep: Sweep, run: Run, mine: Claim, stop: StopRequest, display: Display) -> tuple[int, float]:
    """Starts the launcher and waits for its end: exit code and seconds."""
    command = launchers.command(run, sweep.output, sweep.installation)
    stop_signal = launchers.stop_signal(run.launcher)
    begin = time.monotonic()
    with run.log(sweep.output).open("wb") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        try:
            launcher = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # So that Ctrl-C reaches it once, through this process.
                start_new_session=True,
                preexec_fn=ends_with_this_process(stop_signal),
            )
        except OSError as error:
            raise RunError(
                f"{command[0]} cannot be started ({error.strerror}); install it, or choose another --launcher"
            ) from error
    stop.pass_on_to(launcher, stop_signal)
    mine.add_launcher(launcher.pid)
    while True:
        try:
            return launcher.wait(display.period_s), time.monotonic() - begin
        except subprocess.TimeoutExpired:
            display.tick()


def _failure(sweep: Sweep, run: Run, code: int) -> str:
    """Why a run failed, or nothing: what the program said last, rather than what launchers say about its end."""
    try:
        state = state_of(run, sweep.plans[run.point.hash], sweep.output)
    except UsageError as error:  # what was written is not what was asked for
        return str(error)
    if state == "done":
        return ""
    lines = [line for line in last_lines(run.log(sweep.output)) if not line.startswith("$ ")]
    for speaker in (
        f"{run.point.scenario}: ",
        "shardbench simulate: ",
        "srun: error: ",
        "slurmstepd: error: ",
    ):
        if said := [line for line in lines if line.startswith(speaker)]:
            return said[-1]
    ended = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return f"{ended}, {state}" + (f", {lines[-1]}" if lines else "")


def _report(outcome: Outcome, total: int, stopped: signal.Signals | None) -> None:
    elsewhere = [f"{run.name} is being run by {owner}" for run, owner in outcome.elsewhere]
    for line in [*outcome.failed, *elsewhere]:
        print(f"shardbench sweep: {line}", file=sys.stderr)
    if stopped:
        print(
            f"shardbench sweep: stopped by {stopped.name} after {outcome.done} of {plural(total, 'run')}; "
            "the same command goes on from here",
            file=sys.stderr,
        )


def _submit(sweep: Sweep, runs: Sequence[Run], batch: launchers.Batch) -> None:
    """Hands runs over to Slurm: for each number of ranks one array, because a job has one size."""
    if not runs:
        return
    kept = _kept(sweep)
    # As an element will see the study, whose grids it starts with srun.
    elements = {run.name: index for index, run in enumerate(read_study(kept, "srun").runs)}
    by_ranks: dict[int, list[int]] = defaultdict(list)
    for run in runs:
        by_ranks[run.point.ranks].append(elements[run.name])
    for ranks, indices in sorted(by_ranks.items()):
        job = launchers.submit(kept, indices, ranks, batch, sweep.installation)
        size = f"{plural(len(indices), 'run')} on {plural(ranks, 'rank')}"
        print(f"{sweep.study.name}: {size} submitted as job array {job}", flush=True)


def _kept(sweep: Sweep) -> Path:
    """A copy of the study as it is now: a job that waits in the queue must not meet an edited one."""
    digest = hashlib.sha256(sweep.study.text.encode()).hexdigest()[:8]
    path = sweep.output / FOLDER / f"{sweep.study.path.stem}-{digest}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sweep.study.text, encoding="utf-8")
    return path
