"""Draws one step of a run: what each rank computed, and what it communicated meanwhile."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib.style
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shardbench.errors import RunError, UsageError
from shardbench.extract import NANOSECONDS, Extract, Names
from shardbench.plot import STYLE
from shardbench.plot.layers import (
    BUCKETS,
    COPYING,
    OPTIMIZING,
    WAITING,
    Colour,
    layer_colour,
    layer_scale,
    operation_colour,
)
from shardbench.units import MILLISECONDS, number

MICROSECONDS = 1e6
"""Microseconds in a second."""

MOST_RANKS = 16
"""More cannot be told apart on a page."""
WIDTH_INCHES, LANE_INCHES = 10.0, 0.3
PIXELS_PER_INCH = 150

HATCHES = {"all_gather": "", "reduce_scatter": "//////", "all_reduce": "xxxxxx"}


def draw_step(shown: Extract, path: Path, image_format: str) -> list[str]:
    """Writes the picture ('png' or 'svg') and returns what a reader has to know beside it.

    Raises:
        UsageError: more than one step is to be shown.
        RunError: it has no event.
        TraceError: as for `shardbench.read.read_trace`.
        OSError: it cannot be written.
    """
    steps = sorted(set(shown.steps["step"].tolist()))
    if len(steps) > 1:
        raise UsageError(f"a picture shows one step, not {len(steps)}; pass --steps last, or a number")
    ranks = sorted(shown.ranks["rank"].tolist())
    drawn = ranks[:MOST_RANKS]
    events = pd.concat([block[block["rank"].isin(drawn)] for block in shown.events()] or [pd.DataFrame()])
    if events.empty:
        raise RunError(f"{shown.path} has no event of step {steps[0]} on these ranks; choose others")
    notes = []
    if len(ranks) > len(drawn):
        notes = [
            f"drawn are {len(drawn)} of {len(ranks)} ranks, {drawn[0]} to {drawn[-1]}; choose with --ranks"
        ]
    with matplotlib.style.context(["default", STYLE]):
        figure = step_figure(shown, events, notes)
        stamps = {"Date": None} if image_format == "svg" else {"Software": None}
        figure.savefig(path, format=image_format, dpi=PIXELS_PER_INCH, metadata=stamps)
    return notes


def step_figure(shown: Extract, events: pd.DataFrame, notes: list[str]) -> Figure:
    """Two lanes a rank: compute above, communication below. Layers have the colours of a continuous map.

    `events` are those of one step, as `Extract.events` yields them.
    """
    names, ranks = Names.of(shown), sorted(set(events["rank"].tolist()))
    figure = Figure(figsize=(WIDTH_INCHES, 1.8 + 2 * LANE_INCHES * len(ranks)), layout="constrained")
    axes = figure.add_subplot()
    queues = {
        (axis, kind): names.queue(kind, axis)
        for axis, kind in events.loc[events["stream"] == "comm", ["axis", "kind"]]
        .drop_duplicates()
        .to_numpy()
    }
    for index, rank in enumerate(ranks):
        _draw_rank(axes, 2.3 * index, events[events["rank"] == rank], names.layers, queues)
    _label_axes(axes, shown, ranks)
    _legend(axes, events, names.layers)
    if (events["layer"] >= 0).any():
        bar = figure.colorbar(layer_scale(names.layers), ax=axes, pad=0.01, aspect=30)
        bar.set_label(f"layer: 0 embedding, {names.layers + 1} head")
        bar.locator = MaxNLocator(6, integer=True)
        bar.outline.set_visible(False)
    lanes = sorted(set(queues.values()))
    below = f" (from above: {', '.join(lanes)})" if len(lanes) > 1 else ""
    heading = [_title(shown), f"Upper lane of a rank: compute; lower lane: communication{below}", *notes]
    axes.set_title("\n".join(heading), loc="left", fontsize=11, pad=26)  # above the legend
    return figure


def _draw_rank(
    axes: Axes, top: float, events: pd.DataFrame, layers: int, queues: Mapping[tuple[str, str], str]
) -> None:
    compute = events[events["stream"] == "compute"]
    looks = zip(compute["kind"], compute["layer"])
    colours = [operation_colour(kind, layer, layers, is_compute=True) for kind, layer in looks]
    _draw_lane(axes, compute, top, 0.95, colours, "")
    # Communicators work side by side: each gets a share of the lane.
    shares = sorted(set(queues.values()))
    for (axis, kind), queue in queues.items():
        rows = events[(events["stream"] == "comm") & (events["axis"] == axis) & (events["kind"] == kind)]
        colours = [operation_colour(kind, layer, layers, is_compute=False) for layer in rows["layer"]]
        height = 0.95 / len(shares)
        _draw_lane(axes, rows, top + 1 + shares.index(queue) * height, height, colours, HATCHES.get(kind, ""))


def _draw_lane(
    axes: Axes, rows: pd.DataFrame, top: float, height: float, colours: list[Colour], hatch: str
) -> None:
    milliseconds = MILLISECONDS / NANOSECONDS
    spans = zip(rows["start_ns"] * milliseconds, (rows["end_ns"] - rows["start_ns"]) * milliseconds)
    axes.broken_barh(
        list(spans), (top, height), facecolors=colours, hatch=hatch, edgecolor="white", linewidth=0.2
    )


def _label_axes(axes: Axes, shown: Extract, ranks: list[int]) -> None:
    axes.set_yticks([2.3 * index + 0.975 for index in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    axes.set_ylim(2.3 * len(ranks) - 0.2, -0.15)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.005)
    axes.xaxis.set_major_locator(MaxNLocator(10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel(f"time since the step began, ms ({_clock_text(shown)})")
    axes.grid(axis="x")


def _clock_text(shown: Extract) -> str:
    if shown.header.attributes.simulated:
        return "one simulated clock"
    return f"ranks' clocks compared to ± {number(shown.uncertainty_s * MICROSECONDS, 2)} µs"


def _legend(axes: Axes, events: pd.DataFrame, layers: int) -> None:
    """Only what is there; above the lanes."""
    kinds = set(events["kind"])
    has_optimizer = ((events["kind"] == "compute") & (events["phase"] == "optimizer")).any()
    patches = [Patch(facecolor=WAITING, label="waits for communication")] * ("wait" in kinds)
    patches += [Patch(facecolor=COPYING, label="copies")] * bool(kinds & {"copy_in", "copy_out"})
    patches += [Patch(facecolor=OPTIMIZING, label="optimizer")] * bool(has_optimizer)
    has_layers = (events.loc[events["stream"] == "comm", "layer"] >= 0).any()
    colour = layer_colour((layers + 1) // 2, layers) if has_layers else BUCKETS
    for kind, hatch in HATCHES.items():
        if kind in kinds:
            patches.append(Patch(facecolor=colour, edgecolor="white", hatch=hatch, label=kind))
    axes.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncol=len(patches) or 1
    )


def _title(shown: Extract) -> str:
    attributes, step = shown.header.attributes, shown.steps.iloc[0]
    longest_ms = MILLISECONDS * float(shown.steps["step_s"].max())
    model = shown.header.config.options.get("model", "")
    kind = "simulated" if attributes.simulated else "measured"
    return (
        f"{attributes.scenario} {model}, N = {attributes.world_size}, {kind}: step {int(step['step'])}, "
        f"{number(longest_ms)} ms on the slowest rank"
    )
