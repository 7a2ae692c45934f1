"""How much a rank communicates in a step: in elements against 2Ψ and 3Ψ, and in bytes."""

from collections.abc import Iterator

from shardbench.plot import bars
from shardbench.plot.bars import TEXTBOOK, Bar, Bars
from shardbench.report.parts import Figure, Group, Table, figure, names, omissions, size_text
from shardbench.summary.series import Point, Series
from shardbench.summary.studies import Study
from shardbench.units import byte_unit, bytes_text, element_unit, number

HEADINGS = ("scenario", "N", "elements", "elements / Ψ", "× ddp elements", "bytes", "× ddp bytes")


def communication_group(key: str, study: Study) -> Group:
    """Volumes over dp of the rank that communicates most; padding is stated apart."""
    group = Group("communication", "Communication volume")
    group.sentences += equal_bytes(study)
    group.figures += [*_elements(key, study), *_bytes(key, study)]
    table = _table(study)
    if table.rows:
        group.tables.append(table)
    if not group.figures:
        group.missing += _omitted(study)
    return group


def equal_bytes(study: Study) -> list[str]:
    """Says it where a scheme moves more elements than ddp and as many bytes, at the same N."""
    sentences: dict[str, list[tuple[Series, Point]]] = {}
    for size in study.sizes:
        volumes = _volumes(study, size)
        base = next((point for series, point in volumes if series.scenario == "ddp"), None)
        if base is None:
            continue
        elements, moved = base.typical.ledger.volume_expected, base.typical.ledger.volume_bytes_expected
        for series, point in volumes:
            ledger = point.typical.ledger
            if not (elements and moved and ledger.volume_expected and ledger.volume_bytes_expected):
                continue
            ratio = ledger.volume_expected / elements
            if ratio > 1.01 and abs(ledger.volume_bytes_expected / moved - 1) < 1e-9:
                text = (
                    f"{number(ratio, 3)} times ddp's elements but exactly as many bytes, padding aside, because gathers "
                    "travel in bf16 and what is reduced in fp32"
                )
                sentences.setdefault(text, []).append((series, point))
    return [f"{text}: {names(points)}." for text, points in sentences.items()]


def _volumes(study: Study, size: int) -> list[tuple[Series, Point]]:
    return [(series, point) for series in study.series for point in series.points if point.size == size]


def _elements(key: str, study: Study) -> Iterator[Figure]:
    groups = [
        (series.label, [bar for p in series.points if (bar := _volume_bar(p))]) for series in study.series
    ]
    filled = [(label, members) for label, members in groups if members]
    if filled:
        lines = {f"{count}Ψ": count * float(study.psi) for count in (2, 3)}
        reached = max(bar.extent for _, members in filled for bar in members)
        yield figure(
            f"{key}-volume",
            "Elements against 2Ψ and 3Ψ",
            "Elements per rank and optimizer step over dp, the factor (N−1)/N included, of the rank that communicates "
            "most. Line: measured. Diamond: the textbook's 2Ψ(N−1)/N, for zero3 3Ψ(N−1)/N.",
            study.title,
            lambda: bars.lying_bars(
                Bars(
                    "volume per rank and step",
                    element_unit,
                    filled,
                    {label: value for label, value in lines.items() if value < 4 * reached},
                )
            ),
            _omitted(study),
        )


def _volume_bar(point: Point) -> Bar | None:
    ledger = point.typical.ledger
    if not ledger.volume_measured or ledger.volume_expected is None:
        return None
    parts = {
        "expected": ledger.volume_expected,
        "padding": max(ledger.volume_measured - ledger.volume_expected, 0.0),
    }
    marks = {"measured": ledger.volume_measured, TEXTBOOK: ledger.volume_textbook}
    return Bar(f"N = {size_text(point)}", parts, marks, ledger.volume_measured)


def _omitted(study: Study) -> list[str]:
    reasons = []
    for series in study.series:
        for point in series.points:
            measured = point.typical.ledger.volume_measured
            if measured is None:
                reasons.append((series, point, "no ledger recorded"))
            elif measured == 0:
                alone = point.typical.attributes.dp == 1
                reason = (
                    "a group of one rank over dp communicates nothing" if alone else "nothing communicated"
                )
                reasons.append((series, point, reason))
    return omissions(reasons)


def _bytes(key: str, study: Study) -> Iterator[Figure]:
    size, rivals = study.comparison
    members = []
    for label, point in rivals.items():
        measured, expected = (
            point.typical.ledger.volume_bytes_measured,
            point.typical.ledger.volume_bytes_expected,
        )
        if measured and expected is not None:
            parts = {"expected": expected, "padding": max(measured - expected, 0.0)}
            members.append(Bar(label, parts, {"measured": measured}, measured))
    if members:
        yield figure(
            f"{key}-bytes",
            f"Bytes at N = {size}",
            "The same volumes in the types that travel: parameters in the parameter type, gradients in the type of the "
            "reduction.",
            study.title,
            lambda: bars.lying_bars(Bars("volume per rank and step", byte_unit, [(f"N = {size}", members)])),
        )


def _table(study: Study) -> Table:
    rows = []
    for series in study.series:
        for point in series.points:
            ledger = point.typical.ledger
            if not ledger.volume_measured or ledger.volume_bytes_measured is None:
                continue
            base = next(
                (p.typical.ledger for s, p in _volumes(study, point.size) if s.scenario == "ddp"),
                None,
            )
            rows.append(
                (
                    series.label,
                    str(point.size),
                    f"{ledger.volume_measured:,.0f}",
                    number(ledger.volume_measured / study.psi, 4),
                    _ratio(ledger.volume_measured, base.volume_measured if base else None),
                    bytes_text(ledger.volume_bytes_measured),
                    _ratio(ledger.volume_bytes_measured, base.volume_bytes_measured if base else None),
                )
            )
    return Table("Volume in elements and bytes, measured, padding included", HEADINGS, rows)


def _ratio(value: float, base: float | None) -> str:
    return number(value / base, 4) if base else "-"
