"""Sentences that say what a study's numbers mean, made from the numbers alone."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardbench.ends import End, closed_form_end, scaling_end
from shardbench.overlap import Overlap
from shardbench.summary.launch import Launch
from shardbench.summary.series import Point, Series
from shardbench.summary.setups import depth_text
from shardbench.summary.studies import Study
from shardbench.units import MILLISECONDS, bytes_text, listed, number, percent, plural


OFF = (0, 0)
"""Nothing is gathered ahead."""


@dataclass(frozen=True)
class Sentence:
    """What is said, and the one word that it is about."""

    topic: str
    text: str


def study_sentences(study: Study, memory_limit: float | None = None) -> list[Sentence]:
    """Three: who needs least memory and fits, what is hidden and exposed, where scaling ends and why.

    `memory_limit`: bytes that a rank has; None where that is not known.
    """
    return [
        Sentence("Memory", _memory(study, memory_limit)),
        Sentence("Overlap", _overlap(study)),
        Sentence("Scaling", _scaling(study)),
    ]


def integrity_sentences(launches: Sequence[Launch]) -> list[str]:
    """Whether the runs did what their schedules promise, and computed what they should."""
    recorded = [launch for launch in launches if launch.ledger.rows]
    wrong = [launch for launch in recorded if launch.ledger.mismatches]
    sentences = []
    if wrong:
        sentences.append(
            f"In {len(wrong)} of {plural(len(recorded), 'run')} the ledger's measured counts and bytes "
            f"differ from the expected ones."
        )
    elif recorded:
        sentences.append(
            f"In {_all_of(len(recorded))} every count, byte and element of the ledger was measured exactly "
            f"as expected, padding stated apart."
        )
    checks = [launch.attributes.check for launch in launches]
    passed, failed = checks.count("passed"), checks.count("failed")
    if passed or failed:
        outcome = f"passed in {passed} and failed in {failed}" if failed else f"passed in {passed}"
        sentences.append(
            f"The comparison with an unsharded reference {outcome} of {plural(len(launches), 'run')}"
            + (f"; it was off in {checks.count('off')}." if "off" in checks else ".")
        )
    return [*sentences, *_foreign_schedules(launches)]


def _foreign_schedules(launches: Sequence[Launch]) -> Iterator[str]:
    """Simulated nodes of several GPUs whose collectives are not what NCCL would do there."""
    by_algorithm: dict[tuple[str, int], int] = defaultdict(int)
    for launch in launches:
        machine = (launch.config.simulation or {}).get("machine", {})
        gpus = machine.get("node", {}).get("gpus", 1)
        algorithm = str(launch.config.options.get("algorithm"))
        if gpus > 1 and algorithm not in ("nccl", "None"):
            by_algorithm[(algorithm, gpus)] += 1
    for (algorithm, gpus), count in sorted(by_algorithm.items()):
        yield (
            f"{plural(count, 'simulated run').capitalize()} with nodes of {gpus} GPUs used the algorithm {algorithm}, "
            f"which is not NCCL's default there; --algorithm nccl is."
        )


def _all_of(count: int) -> str:
    return "the one run" if count == 1 else f"all {count:,} runs"


def _memory(study: Study, limit: float | None) -> str:
    size, rivals = study.comparison
    static = {
        label: sum(point.typical.ledger.static_bytes.values())
        for label, point in rivals.items()
        if point.typical.ledger.static_expected is not None
    }
    peaks = {label: point.peak.total for label, point in rivals.items() if point.peak}
    if not static and not peaks:
        return "no run recorded memory (trace level none)."
    texts = [
        _extremes(totals, size, what)
        for totals, what in (
            (static, "static memory (parameters, gradients, optimizer)"),
            (peaks, "peak memory"),
        )
        if totals
    ]
    if peaks and limit is not None:
        texts.append(_fitting(peaks, size, limit))
    return "; ".join(texts) + "."


def _fitting(peaks: Mapping[str, float], size: int, limit: float) -> str:
    fitting = [label for label, peak in peaks.items() if peak <= limit]
    rest = [label for label in peaks if label not in fitting]
    where = f"{bytes_text(limit)} at N = {size}"
    if not fitting:
        return f"none fits into {where}"
    return f"what fits into {where}: {listed(fitting)}" + (f"; what does not: {listed(rest)}" if rest else "")


def _extremes(totals: Mapping[str, float], size: int, what: str) -> str:
    least, most = min(totals.values()), max(totals.values())
    if len(totals) == 1:
        return f"{what} per rank at N = {size} is {bytes_text(least)} ({next(iter(totals))})"
    if least == most:
        return f"at N = {size} all need the same {what} per rank, {bytes_text(least)}"
    return (
        f"least {what} per rank at N = {size} needs {_holders(totals, least)} with {bytes_text(least)}; most, "
        f"{number(most / least, 3)} times as much, {_holders(totals, most)} with {bytes_text(most)}"
    )


def _holders(totals: Mapping[str, float], value: float) -> str:
    return listed([label for label, total in totals.items() if total == value])


def _overlap(study: Study) -> str:
    communicating = [p for series in study.series for p in series.points if p.size > 1]
    if not communicating:
        return "a single rank communicates with nobody."
    if all(point.typical.shares_memory for point in communicating):
        size, rivals = study.comparison
        return (
            f"not measurable here, because all ranks share one host's memory and the cores that copy messages are those "
            f"that compute; exposed at N = {size} {_exposed(rivals)}. A simulated run, or one over several hosts, can "
            "tell what is hidden."
        )
    pair = _prefetch_pair(study)
    hidden = _hidden(study)
    told = [text for text in (pair, hidden) if text]
    if not told:
        size, rivals = study.comparison
        told = [
            f"exposed at N = {size} {_exposed(rivals)}; what is hidden was not recorded (it needs --trace events)"
        ]
    return "; ".join(told) + "."


def _exposed(rivals: Mapping[str, Point]) -> str:
    shares = {label: point.exposed_share for label, point in rivals.items()}
    least, most = min(shares, key=lambda label: shares[label]), max(shares, key=lambda label: shares[label])
    if least == most:
        return f"are {percent(shares[least])} of a step for {least}"
    return f"are {percent(shares[least])} of a step for {least}, up to {percent(shares[most])} for {most}"


def _prefetch_pair(study: Study) -> str | None:
    """What prefetch hid of what is exposed without it, at the smallest and the largest N that have both."""
    for family in study.prefetch_families:
        sizes = [
            size
            for size, by_depth in family.points.items()
            if size > 1 and len(by_depth) > 1 and OFF in by_depth
        ]
        told = []
        for size in dict.fromkeys([*sizes[:1], *sizes[-1:]]):
            without_s = family.points[size][OFF].exposed_s.median
            depth, point = next((d, p) for d, p in family.points[size].items() if d != OFF)
            if without_s > 0:
                told.append(
                    f"at N = {size} prefetch {depth_text(depth)} hid {percent(1 - point.exposed_s.median / without_s)} of "
                    f"what {family.scenario} exposes without it ({_ms(without_s)} ms without, "
                    f"{_ms(point.exposed_s.median)} ms with, {percent(point.exposed_share)} of the step)"
                )
        if told:
            return ", ".join(told)
    return None


def _hidden(study: Study) -> str | None:
    """The hidden fractions at the smallest N above 1 at which most series have one."""
    by_size: dict[int, dict[str, float]] = defaultdict(dict)
    for series in study.series:
        for point in series.points:
            overlap = point.typical.overlap
            if point.size > 1 and not point.typical.shares_memory and isinstance(overlap, Overlap):
                by_size[point.size][series.label] = overlap.imb_percent
    if not by_size:
        return None
    size = max(by_size, key=lambda candidate: (len(by_size[candidate]), -candidate))
    ranked = sorted(by_size[size].items(), key=lambda item: -item[1])
    texts = [f"{percent(value / 100)} for {label}" for label, value in dict.fromkeys([ranked[-1], ranked[0]])]
    return f"the hidden fraction at N = {size} is {' to '.join(texts)}"


def _scaling(study: Study) -> str:
    """Series that end alike are told together, with the range of what ended them."""
    scaled = [series for series in study.series if len(series.points) > 1]
    if not scaled:
        return "every series has one N only, which says nothing about scaling."
    labels: dict[tuple[str, str], list[str]] = defaultdict(list)
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for series in scaled:
        found, last = scaling_end(series), series.points[-1]
        if found is None:
            found = End(last.size, "of a step exposed", last.exposed_share)
            verdict = f"no end up to N = {last.size}, the largest"
        elif found.size == series.base.size:
            verdict = f"past the end at the base N = {found.size}"
        else:
            verdict = f"scaling ends at N = {found.size}"
        star = closed_form_end(series)
        key = (verdict, found.quantity + (f"; in closed form hiding ends at N* = {star:,}" if star else ""))
        labels[key].append(series.label)
        shares[key].append(found.share)
    crowded = any(point.is_oversubscribed for series in scaled for point in series.points)
    caveat = " (at * with more threads than CPUs, which says little about a cluster)" if crowded else ""
    told = [
        f"{listed(members)}: {verdict} ({_range(shares[verdict, quantity])} {quantity})"
        for (verdict, quantity), members in labels.items()
    ]
    return "; ".join(told) + caveat + "."


def _range(shares: Sequence[float]) -> str:
    least, most = percent(min(shares)), percent(max(shares))
    return least if least == most else f"{least} to {most}"


def speed_sentence(study: Study) -> str | None:
    """Who is fastest and slowest at the N that most series have, and whether that may be chance."""
    size, rivals = study.comparison
    if len(rivals) < 2:
        return None
    ranked = sorted(rivals, key=lambda label: -rivals[label].tokens_per_s)
    first, last = ranked[0], ranked[-1]
    return (
        f"Fastest at N = {size}: {first} with {_speed(rivals[first])}. Slowest: {last} with "
        f"{_speed(rivals[last])}. {_separation(rivals[first], rivals[last])}"
    )


def _speed(point: Point) -> str:
    return (
        f"{number(point.tokens_per_s)} tokens/s, {_ms(point.step_s.median)} ms a step, of which "
        f"{_ms(point.exposed_s.median)} ms ({percent(point.exposed_share)}) are exposed communication"
    )


def _ms(seconds: float) -> str:
    return number(seconds * MILLISECONDS)


def _separation(faster: Point, slower: Point) -> str:
    if faster.typical.attributes.simulated and slower.typical.attributes.simulated:
        return "Simulated steps repeat exactly."
    if faster.step_s.high is None or slower.step_s.low is None:
        return "Too few samples for intervals: the order may be chance."
    if faster.step_s.high < slower.step_s.low:
        return "The 95 % intervals of their step times do not overlap."
    return "The 95 % intervals of their step times overlap: the order may be chance."
