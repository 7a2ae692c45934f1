"""Sentences that say what a study's numbers mean, made from the numbers alone."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from shardbench.summary import Launch, Point, Series, Study
from shardbench.units import MILLISECONDS, bytes_text, number, percent, plural


def study_sentences(study: Study) -> list[str]:
    """What is compared, who needs least memory, who is fastest, and how it scales."""
    return [*_scope(study), *_memory(study), *_speed(study), *_scaling(study)]


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


def _scope(study: Study) -> Iterator[str]:
    labels = _listed([series.label for series in study.series])
    sizes = _listed([str(size) for size in study.sizes])
    launches = sum(len(point.launches) for series in study.series for point in series.points)
    yield f"{plural(launches, 'run')} of {labels} at N = {sizes}."


def _memory(study: Study) -> Iterator[str]:
    size, rivals = _largest_comparison(study)
    totals = {
        label: sum(point.typical.ledger.static_bytes.values())
        for label, point in rivals.items()
        if point.typical.ledger.static_expected is not None
    }
    if len(totals) < 2:
        return
    least, most = min(totals.values()), max(totals.values())
    if least == most:
        yield f"At N = {size} all need the same static memory per rank, {bytes_text(least)}."
        return
    yield (
        f"Least static memory per rank at N = {size}: {_holders(totals, least)} with {bytes_text(least)}. "
        f"Most: {_holders(totals, most)} with {bytes_text(most)}, {number(most / least, 3)} times as much."
    )


def _holders(totals: Mapping[str, float], value: float) -> str:
    return _listed([label for label, total in totals.items() if total == value])


def _speed(study: Study) -> Iterator[str]:
    size, rivals = _largest_comparison(study)
    if len(rivals) < 2:
        return
    ranked = sorted(rivals, key=lambda label: -rivals[label].tokens_per_s)
    first, last = ranked[0], ranked[-1]
    yield (
        f"Fastest at N = {size}: {first} with {_speed_text(rivals[first])}. Slowest: {last} with "
        f"{_speed_text(rivals[last])}. {_separation(rivals[first], rivals[last])}"
    )


def _speed_text(point: Point) -> str:
    return (
        f"{number(point.tokens_per_s)} tokens/s, {number(point.step_s.median * MILLISECONDS)} ms a step, of "
        f"which {number(point.exposed_s.median * MILLISECONDS, 3)} ms ({percent(point.exposed_share)}) are "
        f"exposed communication"
    )


def _separation(faster: Point, slower: Point) -> str:
    if faster.step_s.high is None or slower.step_s.low is None:
        return "Too few samples for intervals: the order may be chance."
    if faster.step_s.high < slower.step_s.low:
        return "The 95 % intervals of their step times do not overlap."
    return "The 95 % intervals of their step times overlap: the order may be chance."


def _scaling(study: Study) -> Iterator[str]:
    by_range: dict[tuple[int, int], list[Series]] = defaultdict(list)
    for series in study.series:
        if len(series.points) > 1:
            by_range[(series.base.size, series.points[-1].size)].append(series)
    for (base, last), members in by_range.items():
        growth = _listed([_growth(series) for series in members])
        yield f"From N = {base} to {last}, throughput grows (and efficiency is): {growth}."


def _growth(series: Series) -> str:
    last = series.points[-1]
    factor = number(last.tokens_per_s / series.base.tokens_per_s, 3)
    return f"{series.label} {factor}-fold ({percent(series.efficiency(last))})"


def _largest_comparison(study: Study) -> tuple[int, dict[str, Point]]:
    """The largest N at which most series have a point, and those points by label."""
    by_size = {
        size: {s.label: point for s in study.series for point in s.points if point.size == size}
        for size in study.sizes
    }
    size = max(by_size, key=lambda candidate: (len(by_size[candidate]), candidate))
    return size, by_size[size]


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
