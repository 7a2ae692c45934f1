"""The page as a document: whole, self-contained, navigable, its figures labelled; and as a browser shows it."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from browser import Browser
from pages import Page, parse
from shardbench.busbw import BusBandwidth
from shardbench.cli import main
from shardbench.overlap import Overlap
from shardbench.plot import drawn
from shardbench.plot.collectives import bus_bandwidth
from shardbench.plot.overlapping import Overlaps, hidden_and_inflation
from shardbench.plot.scaling import throughput
from shardbench.predicted import PredictedPoint
from shardbench.report.page import html_report
from shardbench.stats import Estimate
from shardbench.summary.directory import read_directory
from synthetic import Synthetic, synthetic, synthetic_collectives

LABEL = re.compile(
    r", (ms|kB|MB|GB|tokens/s|ranks|bytes|GB/s|elements|10[³⁶⁹] elements|% of (base|step))$"
    r"|^prefetch, groups ahead|^hidden fraction, 1 = all$|^compute inflation, × alone$|\(ratio\)$|^layer \("
)
"""A quantity and its unit, or what counts."""

PHONE, DESKTOP = 400, 1280


def everything() -> list[Synthetic]:
    """Runs that give every kind of figure: measured and simulated, strong and weak, two depths, collectives."""
    simulated = [
        synthetic("zero3", size, simulated=1, launch=depth, options={"prefetch": f"{depth},{depth}"})
        for size in (8, 16, 128)
        for depth in (0, 1)
    ]
    for run in simulated:
        run.tables["calibration"] = [
            dict(
                kind=kind,
                layer=layer,
                direction="forward",
                compute_alone_s=0.005,
                communication_alone_s=0.004,
            )
            for kind, layer in (("embedding", 0), ("block", 1))
        ]
    return [
        *(synthetic(scenario, size) for scenario in ("ddp", "zero1", "zero2", "zero3") for size in (1, 2, 4)),
        *(
            synthetic("ddp", size, options={"global-batch": 8, "grad-accum": 8 // size}, launch=7)
            for size in (1, 2, 4)
        ),
        *simulated,
        synthetic(size=2, status="failed", launch=9),
        synthetic_collectives(size=2),
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for index, run in enumerate(everything()):
        run.write(folder / f"{index:02}.h5")
    assert main(["report", str(folder), "-o", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(report: Path) -> Page:
    return parse(report.read_text(encoding="utf-8"))


def test_ids_are_unique_and_references_resolve(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert set(page.targets) <= set(page.ids)


def test_every_figure_is_there(page: Page) -> None:
    titles = [figure.title.replace("\u00a0", " ") for figure in page.figures]
    for title in (
        "Parallel efficiency",
        "Exposed communication against N",
        "Where a step's time goes",
        "How ranks differ",
        "One step of zero1, N = 4",
        "Static memory by stage of sharding",
        "Static memory over N",
        "Peak memory by category",
        "Elements against 2Ψ and 3Ψ",
        "Bytes at N = 4",
        "Hidden fraction and compute inflation",
        "Prefetch depth of zero3",
        "Bus bandwidth over size",
    ):
        assert title in titles
    assert titles.count("Throughput against N") == 3  # measured weak and strong, simulated weak


def test_every_figure_is_labelled(page: Page) -> None:
    for figure in page.figures:
        assert figure.role == "img"
        assert figure.aria_label.startswith(figure.title.replace("\u00a0", " "))
        assert len(figure.caption.split()) > 5, figure.title
        assert any(name.startswith("x-label") for name in figure.labels), figure.title
        for label in figure.labels.values():
            assert LABEL.search(label.strip()), (figure.title, label)


def test_contents_lead_to_every_section(page: Page) -> None:
    groups = {f"s1-{group}" for group in ("scaling", "time", "memory", "communication", "overlap")}
    assert groups | {"s1", "s2", "s2-prefetch", "collectives", "excluded", "provenance"} <= set(page.targets)


def test_three_sentences_for_each_study(report: Path) -> None:
    topics = re.findall(r'class="topic">(\w+)<', report.read_text(encoding="utf-8"))
    assert topics == ["Memory", "Overlap", "Scaling"] * 2


def test_many_studies_stay_navigable(tmp_path: Path) -> None:
    for index in range(9):
        run = synthetic(size=1, launch=index)
        run.config["model"]["seq"] = 32 + index
        run.write(tmp_path / f"{index}.h5")
    text = html_report(read_directory(tmp_path))
    assert "<summary>And 3 more</summary>" in text
    assert {f"s{index}" for index in range(1, 10)} <= set(parse(text).targets)


def test_predictions_are_drawn_beside_runs_and_told_apart(tmp_path: Path) -> None:
    for size in (1, 2, 4):
        synthetic(size=size, step_s=[0.01] * 6).write(tmp_path / f"{size}.h5")
    found = read_directory(tmp_path)
    points = [PredictedPoint("2.h5", 8, 0.02, 0.018, 0.022, 0.3), PredictedPoint("nobody.h5", 16, 0.02)]
    without, text = html_report(found), html_report(found, points)
    parse(text)
    for told in (">predicted</text>", "Dashed and hollow: predicted"):
        assert told not in without
        assert told in text
    assert "Predictions from nobody.h5, which is not among the runs, are not drawn." in text
    for page, is_drawn in ((without, False), (text, True)):
        for title in ("Throughput against N", "Parallel efficiency", "Exposed communication against N"):
            (svg,) = svgs(page, title)
            assert (">8</text>" in svg) is is_drawn
    (unknown,) = svgs(
        html_report(found, [replace(points[0], exposed_share=None)]), "Exposed communication against N"
    )
    assert ">8</text>" not in unknown


def svgs(text: str, title: str) -> list[str]:
    return re.findall(rf'<svg role="img" aria-label="{title}.*?</svg>', text, re.DOTALL)


def test_a_figure_of_ranks_does_not_grow_with_them(tmp_path: Path) -> None:
    for size in (16, 512):
        synthetic(size=size, simulated=1, step_s=[0.01] * 2).write(tmp_path / f"{size}.h5")
    (ranks,) = svgs(html_report(read_directory(tmp_path)), "How ranks differ")
    assert len(ranks) < 60_000


@pytest.mark.parametrize("count", [1, 12, 40])
def test_figures_leave_room_for_their_legends(count: int, tmp_path: Path) -> None:
    """Warnings are errors here; matplotlib warns where a layout is impossible."""
    labels = [
        f"all_reduce maximum, hierarchical, fp32, N = {2 + i}, simulated on a machine" for i in range(count)
    ]
    some = BusBandwidth(
        "f", "", "all_reduce", "ring", "bf16", "sum", 8, 1024, Estimate(1.0, None, None, 3), 0
    )
    for size in (1, 2):
        synthetic(size=size).write(tmp_path / f"{size}.h5")
    (series,) = read_directory(tmp_path).studies[0].series
    renamed = [replace(series, label=label) for label in labels]
    overlap = Overlap(0.8, 0.4, step_s=1.0, layers_alone_s=0.7, layers_in_step_s=0.8)
    for draw in (
        lambda: bus_bandwidth({label: [some, replace(some, size_bytes=4096)] for label in labels}),
        lambda: throughput(renamed, {}),
        lambda: hidden_and_inflation([Overlaps(label, [(8, overlap)]) for label in labels]),
    ):
        drawn(draw, "key", "label")
        figure = draw()
        figure.draw_without_rendering()
        assert all(axes.get_window_extent().height > 1.5 * figure.dpi for axes in figure.axes)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("needs chromium (Debian: chromium)")
    browser = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_browser_shows_it_without_complaint(report: Path, browser: Browser, width: int) -> None:
    browser.show(report, width, is_phone=width == PHONE)
    assert browser.value("document.fonts.status") == "loaded"
    assert browser.told("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    assert [sent["request"]["url"] for sent in browser.told("Network.requestWillBeSent")] == [report.as_uri()]
    assert browser.value("document.documentElement.scrollWidth") == width
    heights = "[...document.querySelectorAll('figure svg')].map(svg => svg.getBoundingClientRect().height)"
    assert min(browser.value(heights)) > 100


def test_no_text_leaves_its_figure(report: Path, browser: Browser) -> None:
    browser.show(report, DESKTOP, is_phone=False)
    outside = browser.value(
        """[...document.querySelectorAll('figure svg text')].filter(text => {
            const inner = text.getBoundingClientRect(), outer = text.closest('svg').getBoundingClientRect();
            return inner.left < outer.left - 2 || inner.right > outer.right + 2
                || inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2;
        }).map(text => text.closest('svg').getAttribute('aria-label') + ': ' + text.textContent)"""
    )
    assert outside == []
