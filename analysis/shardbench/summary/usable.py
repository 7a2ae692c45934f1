"""Which files of a directory can be used; what is left out, and why."""

import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardbench import stats
from shardbench.bar import bar
from shardbench.errors import UsageError
from shardbench.plans import BENCHMARK
from shardbench.read import Trace, TraceError, read_trace


@dataclass(frozen=True)
class Excluded:
    """A file that is left out, and why; `has_failed` where its run did, or the check of its results."""

    name: str
    reason: str
    has_failed: bool = False


def find_traces(path: Path) -> list[Path]:
    """The file itself, or every *.h5 below the folder, in the order of names.

    Raises:
        UsageError: there is nothing to read.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist; pass the folder that holds .h5 files, or one of them")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} is no regular file; pass the folder that holds .h5 files, or one of them")
    # Regular files only: opening a pipe of that name would wait for ever.
    files = sorted(p for p in path.rglob("*.h5") if p.is_file())
    if not files:
        raise UsageError(f"no *.h5 file below {path}; run a scenario with --output {path}/NAME.h5")
    return files


def name_below(path: Path, file: Path) -> str:
    """How a file that `find_traces(path)` has found is called, in one line; its name need not be UTF-8, this is."""
    name = os.fsencode(file.name if file == path else file.relative_to(path)).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def usable_traces(
    path: Path, excluded: list[Excluded], *, for_fits: bool = False
) -> Iterator[tuple[str, Trace]]:
    """Reads a file, or each below a folder, one at a time: its name there, and what it holds.

    Files of the program `collectives` are among them. What is incomplete, damaged or a copy of another is added to
    `excluded` instead; for fits so is what `unfit` names.

    Raises:
        UsageError: there is nothing to read.
    """
    names_by_launch: dict[tuple[str, ...], str] = {}
    linked: dict[Hashable, Excluded] = {}  # what another link to a file that was read is
    for file in bar(find_traces(path), "file"):
        name, contents = name_below(path, file), _contents(file)
        if contents in linked:
            excluded.append(replace(linked[contents], name=name))
            continue
        try:
            trace = read_trace(file)
        except TraceError as error:
            excluded.append(Excluded(name, "; ".join(error.problems)))
            linked[contents] = excluded[-1]
            continue
        attributes = trace.attributes
        identity = (attributes.launch_id, attributes.created_utc, attributes.command_line)
        reason = unusable(trace)
        original = name if reason else names_by_launch.setdefault(identity, name)
        copy = Excluded(name, reason or f"a copy of {original}", has_failed=attributes.status == "failed")
        linked[contents] = copy
        if reason or original != name:
            excluded.append(copy)
        elif for_fits and (reason := unfit(trace)):
            excluded.append(replace(copy, reason=reason))
        else:
            yield name, trace


def _contents(file: Path) -> Hashable:
    """The same for all links to a file, as long as nobody writes it."""
    try:
        status = file.stat()
    except OSError:  # gone meanwhile; reading it will say so
        return file
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def unusable(trace: Trace) -> str | None:
    """Why a file's numbers must not be used for anything, or None."""
    if trace.incomplete:
        return trace.incomplete
    if trace.attributes.scenario == BENCHMARK:
        return None if (trace.collectives["window"] >= 0).any() else "no timed collectives"
    step_s = stats.timed_steps(trace.steps)["step_s"]
    if step_s.empty:
        return f"no timed steps (scenario '{trace.attributes.scenario}')"
    if missing := _missing_steps(trace):
        return missing
    is_time = np.isfinite(step_s) & (step_s > 0)
    if not is_time.all():
        return f"a step time of {step_s[~is_time].iloc[0]} s"
    if stats.tokens_per_step(trace.steps) == 0:
        return "no tokens in the timed steps"
    return None


def _missing_steps(trace: Trace) -> str | None:
    """Status and rows disagree where rows were lost on the way."""
    options = trace.config.options
    if not all(isinstance(options.get(name), int) for name in ("warmup", "steps")):
        return (
            "the options 'warmup' and 'steps' are not recorded, so nothing tells whether all steps are there"
        )
    expected = options["warmup"] + options["steps"]
    found = (
        trace.steps.groupby("rank")["step"]
        .nunique()
        .reindex(range(trace.attributes.world_size), fill_value=0)
    )
    rank = found.idxmin()
    if found[rank] < expected:
        return f"{found[rank]} of {expected} steps on rank {rank}, although the status is 'complete'"
    return None


def unfit(trace: Trace) -> str | None:
    """Why a usable file's times must stay out of fits, or None."""
    if trace.attributes.oversubscribed:
        return "oversubscribed: more threads than CPUs, so that times are those of the queue for a core"
    if trace.attributes.check == "failed":
        return "its check failed: it did not do the work that its times are of"
    return None
