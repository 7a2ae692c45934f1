"""Assembles the page: one file without external references, all text escaped."""

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from shardbench import __version__
from shardbench.ends import DEFINITION
from shardbench.narrate import Sentence, integrity_sentences, study_sentences
from shardbench.predicted import PredictedPoint
from shardbench.read import SCHEMA_VERSION
from shardbench.report.bandwidths import bandwidth_group
from shardbench.report.communication import communication_group
from shardbench.report.hiding import overlap_group, prefetch_group
from shardbench.report.memory import memory_group
from shardbench.report.parts import NUMERIC, Group
from shardbench.report.provenance import period, provenance
from shardbench.report.scaling import counted, scaling_group
from shardbench.report.steptime import time_group
from shardbench.summary.directory import Directory
from shardbench.summary.studies import Study
from shardbench.summary.warnings import warnings

MOST_SUMMARIES = 6
"""Studies whose sentences are open at first."""


@dataclass(frozen=True)
class Section:
    """A study on the page."""

    key: str
    title: str
    runs: str
    sentences: Sequence[Sentence]
    groups: Sequence[Group]


def html_report(
    found: Directory, predicted: Sequence[PredictedPoint] = (), memory_limit: float | None = None
) -> str:
    """The page as HTML.

    `predicted` points are drawn beside those of the series that they name. `memory_limit` is what a rank has, bytes.
    """
    environment = Environment(
        loader=PackageLoader("shardbench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = _unbroken
    sections = [
        _section(f"s{index}", study, predicted, memory_limit) for index, study in enumerate(found.studies, 1)
    ]
    runs = {launch.name for launch in found.launches}
    strangers = sorted({point.file for point in predicted} - runs)
    return environment.get_template("report.html").render(
        directory=found.name,
        period=period(found.launches),
        runs=len(found.launches),
        sections=sections,
        most_summaries=MOST_SUMMARIES,
        definition=DEFINITION,
        collectives=bandwidth_group(found.bandwidths),
        integrity=integrity_sentences(found.launches),
        warnings=[
            *warnings(found.launches),
            *(f"Predictions from {file}, which is not among the runs, are not drawn." for file in strangers),
        ],
        numeric=NUMERIC,
        excluded=found.excluded,
        provenance=provenance(found.launches),
        version=__version__,
        schema_version=SCHEMA_VERSION,
    )


def _section(
    key: str, study: Study, predicted: Sequence[PredictedPoint], memory_limit: float | None
) -> Section:
    groups = [
        scaling_group(key, study, predicted),
        time_group(key, study),
        memory_group(key, study, memory_limit),
        communication_group(key, study),
        overlap_group(key, study),
        prefetch_group(key, study),
    ]
    return Section(
        key,
        study.title,
        counted(study),
        study_sentences(study, memory_limit),
        [group for group in groups if not group.is_empty],
    )


def _unbroken(text: str) -> str:
    """Keeps 'N = 4' and '95 %' on one line."""
    return text.replace("N = ", "N\u00a0=\u00a0").replace(" %", "\u00a0%")
