"""What a reader must know before believing the numbers."""

from collections.abc import Iterator, Sequence

import numpy as np

from shardbench.stragglers import Unknown
from shardbench.summary.launch import Launch
from shardbench.units import MILLISECONDS, number, percent, plural

STRAGGLER_SHARE = 0.05
"""The part of a step from which on waiting for one rank is worth a warning."""


def warnings(launches: Sequence[Launch]) -> list[str]:
    """What a reader must know before believing the numbers, one sentence each."""
    return [
        *_oversubscription(launches),
        *_unsteady(launches),
        *_stragglers(launches),
        *_shared_memory(launches),
        *_failed_checks(launches),
        *_several_commits(launches),
    ]


def _oversubscription(launches: Sequence[Launch]) -> Iterator[str]:
    crowded = [launch for launch in launches if launch.attributes.oversubscribed]
    if crowded:
        worst = max(crowded, key=lambda launch: launch.size * launch.threads)
        threads, cpus = plural(worst.threads, "thread"), plural(worst.allowed_cpus, "CPU")
        yield (
            f"{plural(len(crowded), 'run')} with more threads than CPUs (up to {worst.size} ranks × "
            f"{threads}, {cpus} allowed): ranks took turns, so these step times say "
            "little about scaling. They are marked with *."
        )


def _unsteady(launches: Sequence[Launch]) -> Iterator[str]:
    unsteady = [launch.name for launch in launches if not launch.attributes.steady]
    if unsteady:
        yield (
            f"{plural(len(unsteady), 'run')} not steady: the two halves of the timed steps differ. "
            f"Run more warm-up steps. {_some(unsteady)}"
        )


def _stragglers(launches: Sequence[Launch]) -> Iterator[str]:
    """Names the rank that others wait for, the worst run first."""
    found = []
    for launch in launches:
        waits = launch.waits
        if isinstance(waits, Unknown) or waits.late_rank is None or not waits.late.is_resolved:
            continue
        share = waits.late.seconds / float(np.median(launch.step_s))
        if share > STRAGGLER_SHARE:
            late = f"rank {waits.late_rank} is waited for: {number(waits.late.seconds * MILLISECONDS, 3)} ms"
            found.append((share, f"{launch.name}: {late} a step ({percent(share)})"))
    if found:
        worst = [text for _, text in sorted(found, key=lambda item: -item[0])]
        more = f"; and {len(worst) - 3} more" if len(worst) > 3 else ""
        yield (
            f"Ranks wait for a straggler for more than {percent(STRAGGLER_SHARE)} of the step in "
            f"{plural(len(worst), 'run')}. {'; '.join(worst[:3])}{more}."
        )


def _shared_memory(launches: Sequence[Launch]) -> Iterator[str]:
    shared = [launch.name for launch in launches if launch.shares_memory]
    if shared:
        yield (
            f"{plural(len(shared), 'run')} with all ranks on one host: messages are copies in shared "
            f"memory, made by the cores that also compute. What overlap gains is not measurable here."
        )


def _failed_checks(launches: Sequence[Launch]) -> Iterator[str]:
    failed = [launch.name for launch in launches if launch.attributes.check == "failed"]
    if failed:
        yield (
            f"{plural(len(failed), 'run')} whose check failed: gradients or masters differ from "
            f"the unsharded reference, so the numbers describe wrong training. {_some(failed)}"
        )


def _several_commits(launches: Sequence[Launch]) -> Iterator[str]:
    commits = sorted({launch.attributes.git_commit for launch in launches})
    if len(commits) > 1:
        short = ", ".join(commit[:12] for commit in commits)
        yield f"The runs come from {len(commits)} commits ({short}): differences may be the code's."


def _some(names: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"Files: {', '.join(names[:shown])}{more}."
