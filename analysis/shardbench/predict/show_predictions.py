"""`shardbench predict`: step time, exposed communication and memory at N that nobody has run."""

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardbench.ends import EXPOSED_LIMIT
from shardbench.errors import RunError, UsageError
from shardbench.predict.alphabeta import FEWEST_GROUPS
from shardbench.predict.directory import read_for_fits
from shardbench.predict.model import Prediction, Skill
from shardbench.predict.outlook import Outlook, Supplement, outlooks_of
from shardbench.predict.remedy import collectives_command
from shardbench.predict.supplement import supplement
from shardbench.sweep.launchers import find_installation
from shardbench.units import MILLISECONDS, bytes_text, listed, number, percent, text_table

HEADINGS = (
    "configuration",
    "N",
    "step ms",
    "95 % interval",
    "exposed",
    "tokens/s",
    "peak memory/rank",
    "measured ms",
    "error",
)
NUMERIC = HEADINGS[1:]


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        UsageError, RunError: see there.
    """
    if options.ranks_per_node is not None and options.ranks_per_node < 1:
        raise UsageError(f"--ranks-per-node {options.ranks_per_node} is no number of ranks; pass 1 or more")
    found = read_for_fits(options.directory)
    for line in found.reasons():
        print(line, file=sys.stderr)
    binaries = find_installation(options.bin).binaries
    outlooks, refusals = outlooks_of(
        found.files, options.to, binaries, options.ranks_per_node, _supplement(options)
    )
    for refusal in refusals:
        print(refusal, file=sys.stderr)
    if not outlooks:
        raise RunError(f"nothing below {options.directory} can be extrapolated; see above")
    if options.format == "json":
        print(json.dumps(list(map(_entry, outlooks)), indent=1, allow_nan=False))
    elif options.format == "csv":
        _write_csv(outlooks)
    else:
        _print(outlooks, options.gpu_memory)
        below = options.directory if options.directory.is_dir() else options.directory.parent
        for command in additions(outlooks, below, binaries):
            print(f"\nTo add runs of the program collectives:\n{command}")
    return 0


def _supplement(options: argparse.Namespace) -> Supplement:
    if options.files_only or options.ranks_per_node:  # which is not what a simulation would have
        return lambda _: ()

    def say(line: str) -> None:
        print(f"shardbench predict: {line}", file=sys.stderr)

    return lambda doubtful: supplement(doubtful, options.sim_bin, say)


def _print(outlooks: Sequence[Outlook], memory: int | None) -> None:
    rows = [_row(outlook, p) for outlook in outlooks for p in outlook.predictions]
    print(text_table([HEADINGS, *rows], NUMERIC), end="\n\n")
    for outlook in outlooks:
        for sentence in sentences(outlook):
            print(f"{outlook.configuration.label}: {sentence}")
    for sentence in doubts(outlooks):
        print(f"\n{sentence}")
    if memory is not None:
        print(f"\n{fastest_that_fits(outlooks, memory)}")


def _row(outlook: Outlook, prediction: Prediction) -> tuple[str, ...]:
    measured_s = outlook.measured_s(prediction.ranks)
    return (
        outlook.configuration.label,
        f"{prediction.ranks}{'?' if prediction.is_doubtful else ''}",
        number(prediction.step_s * MILLISECONDS),
        f"{number(prediction.low_s * MILLISECONDS)} – {number(prediction.high_s * MILLISECONDS)}",
        percent(prediction.exposed_share),
        number(prediction.tokens_per_s),
        bytes_text(prediction.peak_bytes),
        number(measured_s * MILLISECONDS) if measured_s else "",
        percent(prediction.step_s / measured_s - 1.0) if measured_s else "",
    )


def sentences(outlook: Outlook) -> Iterator[str]:
    """Where communication shows, how good the model is, and where it may be wrong."""
    last = outlook.predictions[-1].ranks
    if outlook.exposed_from is None:
        yield f"exposed communication stays below {percent(EXPOSED_LIMIT)} up to N = {last}."
    else:
        doubt = (
            "?" if any(p.is_doubtful and p.ranks <= outlook.exposed_from for p in outlook.predictions) else ""
        )
        yield f"exposed communication is more than {percent(EXPOSED_LIMIT)} of the step from N = {outlook.exposed_from}{doubt} on."
    if outlook.skill:
        yield _skill_sentence(outlook.skill)


def doubts(outlooks: Iterable[Outlook]) -> Iterator[str]:
    """What the question marks mean, once for each remedy."""
    outside: dict[str, set[str]] = defaultdict(set)
    undecided: dict[str, set[str]] = defaultdict(set)
    for outlook in outlooks:
        tensor = outlook.configuration.setup.tp > 1
        runs = "small models, with the same tp" if tensor else "the program collectives from small sizes on"
        for prediction in outlook.predictions:
            outside[runs].update(prediction.outside)
            undecided[runs].update(prediction.undecided)
    for runs in outside:
        if kinds := sorted(outside[runs]):
            yield (
                f"marked ?: latency is a larger part of {listed(kinds)} than in any file. The library may have a "
                f"faster way there; the step is then shorter, and the interval reaches down to no latency. Runs of {runs}, at "
                "the same numbers of nodes, would show it."
            )
        if kinds := sorted(undecided[runs]):
            yield (
                f"marked ?: groups of fewer than {FEWEST_GROUPS} sizes do not tell whether the latency of {listed(kinds)} grows "
                f"with N. It is taken to grow; the interval reaches down to that of the largest group. Runs of {runs}, on "
                f"{FEWEST_GROUPS} numbers of nodes or more, would tell."
            )


def additions(outlooks: Iterable[Outlook], directory: Path, binaries: Path) -> list[str]:
    """Commands that show what is outside of measured files, each once. What is undecided needs N that they do not have."""
    outside = [o.configuration for o in outlooks if any(p.outside for p in o.predictions)]
    commands = (collectives_command(configuration, directory, binaries) for configuration in outside)
    return list(dict.fromkeys(filter(None, commands)))


def _skill_sentence(found: Skill) -> str:
    how = "from smaller N alone" if found.held_out else "which the model has seen"
    if found.value is None:
        return f"communication is hidden at N = {found.ranks}, {how}, so that a prediction there has no skill to show."
    verdict = "" if found.value > 0 else ", no better than a model without communication: do not rely on it"
    return (
        f"skill {found.value:.2f} (1 is perfect) at N = {found.ranks}, {how}: the step time is off by {percent(found.error)}"
        f"{verdict}."
    )


def fastest_that_fits(outlooks: Sequence[Outlook], memory: int) -> str:
    """Of the largest N, in a sentence."""
    ranks = max(outlook.predictions[-1].ranks for outlook in outlooks)
    last = [(outlook, p) for outlook in outlooks for p in outlook.predictions if p.ranks == ranks]
    fitting = [(outlook, p) for outlook, p in last if p.peak_bytes <= memory]
    if not fitting:
        least = min(p.peak_bytes for _, p in last)
        return f"At N = {ranks} nothing fits {bytes_text(memory)}; the least is {bytes_text(least)}."
    outlook, best = max(fitting, key=lambda item: item[1].tokens_per_s)
    return (
        f"Fastest that fits {bytes_text(memory)} at N = {best.ranks}: {outlook.configuration.label} with "
        f"{number(best.tokens_per_s)} tokens/s and {bytes_text(best.peak_bytes)}."
    )


def _entry(outlook: Outlook) -> dict[str, Any]:
    """Seconds, bytes."""
    return {
        "configuration": outlook.configuration.label,
        "scenario": outlook.configuration.setup.scenario,
        "arguments": list(outlook.configuration.setup.arguments),
        "exposed_limit": EXPOSED_LIMIT,
        "exposed_from_ranks": outlook.exposed_from,
        "skill": outlook.skill and asdict(outlook.skill),
        "predictions": [_facts(outlook, p) for p in outlook.predictions],
    }


def _facts(outlook: Outlook, prediction: Prediction) -> dict[str, Any]:
    shares = {"exposed_share": prediction.exposed_share, "tokens_per_s": prediction.tokens_per_s}
    return asdict(prediction) | shares | {"measured_s": outlook.measured_s(prediction.ranks)}


def _write_csv(outlooks: Iterable[Outlook]) -> None:
    rows = [{"configuration": o.configuration.label} | _facts(o, p) for o in outlooks for p in o.predictions]
    for row in rows:
        for doubt in ("outside", "undecided"):
            row[doubt] = "; ".join(row[doubt])
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
