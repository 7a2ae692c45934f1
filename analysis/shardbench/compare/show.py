"""A comparison as text, and as JSON."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from shardbench.compare.pairs import Comparison, Memory, Pair, Samples, Single, Time, provenance
from shardbench.stats import MINIMUM_SAMPLES, Estimate
from shardbench.summary.directory import Directory
from shardbench.summary.series import Point
from shardbench.units import MILLISECONDS, bytes_text, number, percent, plural, text_table

HEADINGS = (
    *(
        "scenario",
        "N",
        "A ms",
        "B ms",
        "B/A",
        "95 % interval",
        "step time",
        "exposed A ms",
        "exposed B ms",
        "exposed",
    ),
    *("A memory", "B memory", "memory", "intervals from"),
)
NUMERIC = (
    "N",
    "A ms",
    "B ms",
    "B/A",
    "95 % interval",
    "exposed A ms",
    "exposed B ms",
    "A memory",
    "B memory",
)


def as_text(found: Comparison, threshold: float) -> str:
    """Tables of the points on both sides, a line for each regression, and what was not compared.

    `threshold` is a share: 0.05 for 5 %.
    """
    blocks = ["\n".join(_sides(found))]
    for title, pairs in groupby(found.pairs, key=lambda pair: pair.study):
        blocks.append(f"{title}\n{text_table([HEADINGS, *map(_cells, pairs)], NUMERIC)}")
    blocks += _notes(found)
    blocks += [block for block in _not_compared(found) if block]
    blocks.append("\n".join(_conclusion(found, threshold)))
    return "\n\n".join(blocks)


def _notes(found: Comparison) -> Iterator[str]:
    if any(point.is_oversubscribed for pair in found.pairs for point in (pair.a, pair.b)):
        yield "* oversubscribed: more threads than CPUs"
    if any(pair.samples is Samples.STEPS for pair in found.pairs):
        yield (
            "within launch: intervals from the steps of one launch, widened to the medians of all. They hold for these "
            f"launches and say nothing about the next one; {MINIMUM_SAMPLES} launches a side do."
        )


def _sides(found: Comparison) -> Iterator[str]:
    of_a, of_b = provenance(found.a), provenance(found.b)
    for name, side, facts in (("A (base)", found.a, of_a), ("B", found.b, of_b)):
        commits = ", ".join(facts.get("commit", ("none",)))
        yield f"{name}: {side.name}, {plural(len(side.launches), 'launch')}, commit {commits}"
    for name, values in of_a.items():
        if name != "commit" and values != of_b.get(name, values):
            yield f"{name} differs: A {', '.join(of_a[name])}; B {', '.join(of_b[name])}"


def _cells(pair: Pair) -> tuple[str, ...]:
    return (
        pair.label,
        _size(pair.a, pair.b),
        number(pair.step.a.median * MILLISECONDS),
        number(pair.step.b.median * MILLISECONDS),
        _ratio(pair.step.ratio.value),
        _interval(pair.step),
        pair.step.verdict,
        number(pair.exposed.a.median * MILLISECONDS),
        number(pair.exposed.b.median * MILLISECONDS),
        pair.exposed.verdict,
        _bytes(pair.memory.a),
        _bytes(pair.memory.b),
        pair.memory.verdict,
        pair.basis,
    )


def _size(*points: Point) -> str:
    return f"{points[0].size}{'*' if any(point.is_oversubscribed for point in points) else ''}"


def _ratio(value: float | None) -> str:
    """Four digits, more where it is nearer to 1 than these show."""
    if value is None:
        return "-"
    text = f"{value:.3f}"
    return f"1 {value - 1:+.1e}" if text == "1.000" and value != 1 else text


def _interval(time: Time) -> str:
    ends = time.ratio.low, time.ratio.high
    return "-" if None in ends else " – ".join(map(_ratio, ends))


def _bytes(count: float | None) -> str:
    return "-" if count is None else bytes_text(count)


def _not_compared(found: Comparison) -> Iterator[str]:
    for name, singles in (("A", found.only_a), ("B", found.only_b)):
        if singles:
            lines = [f"  {single.label}, N = {single.point.size} ({single.study})" for single in singles]
            yield "\n".join([f"Only in {name}:", *lines])
    for name, side in (("A", found.a), ("B", found.b)):
        if side.excluded:
            lines = [f"  {excluded.name}: {excluded.reason}" for excluded in side.excluded]
            yield "\n".join([f"Left out of {name}:", *lines])


def _conclusion(found: Comparison, threshold: float) -> Iterator[str]:
    for pair in found.pairs:
        if reasons := pair.regressions(threshold):
            yield f"regressed: {pair.label}, N = {pair.a.size}: {'; '.join(reasons)}"
    for excluded in found.failed:
        yield f"regressed: {excluded.name}: {excluded.reason}"
    count = found.regressions(threshold)
    beyond = f" beyond {percent(threshold)}" if threshold else ""
    verdict = f"{count} regressed" if count else "no regression shown"
    yield f"{plural(len(found.pairs), 'point')} compared, {verdict}{beyond}"


def as_json(found: Comparison, threshold: float) -> str:
    """The same as JSON, UTF-8 and in full precision; analysis/README.md lists the fields."""
    content = {
        "a": _side(found.a),
        "b": _side(found.b),
        "threshold_percent": 100 * threshold,
        "points": [_point(pair, threshold) for pair in found.pairs],
        "only_a": [_single(single) for single in found.only_a],
        "only_b": [_single(single) for single in found.only_b],
        "failed_b": [excluded.name for excluded in found.failed],
        "regressions": found.regressions(threshold),
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)


def _side(side: Directory) -> dict[str, Any]:
    return {
        "path": side.name,
        "launches": len(side.launches),
        **{name.lower(): list(values) for name, values in provenance(side).items()},
        "left_out": [{"file": excluded.name, "reason": excluded.reason} for excluded in side.excluded],
    }


def _point(pair: Pair, threshold: float) -> dict[str, Any]:
    return {
        **_identity(pair.study, pair.label, pair.a),
        "step_s": _time(pair.step),
        "exposed_s": _time(pair.exposed),
        "peak_memory_bytes": _memory(pair.memory),
        "samples": pair.samples,
        "basis": pair.basis,
        "oversubscribed": pair.a.is_oversubscribed or pair.b.is_oversubscribed,
        "files_a": _files(pair.a),
        "files_b": _files(pair.b),
        "regressions": pair.regressions(threshold),
    }


def _single(single: Single) -> dict[str, Any]:
    return {**_identity(single.study, single.label, single.point), "files": _files(single.point)}


def _identity(study: str, label: str, point: Point) -> dict[str, Any]:
    launch = point.typical
    return {
        "study": study,
        "label": label,
        "scenario": launch.attributes.scenario,
        "model": launch.config.options.get("model"),
        "n": point.size,
        "threads": launch.threads,
        "simulated": bool(launch.attributes.simulated),
        "options": launch.setup(),
    }


def _files(point: Point) -> Sequence[str]:
    return [launch.name for launch in point.launches]


def _time(time: Time) -> dict[str, Any]:
    return {
        "a": _estimate(time.a),
        "b": _estimate(time.b),
        "ratio": {"value": time.ratio.value, "low": time.ratio.low, "high": time.ratio.high},
        "verdict": time.verdict,
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "median": estimate.median,
        "low": estimate.low,
        "high": estimate.high,
        "samples": estimate.samples,
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {"a": memory.a, "b": memory.b, "verdict": memory.verdict}
