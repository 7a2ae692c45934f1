"""Draws one step of a run: what each rank computed, and what it communicated meanwhile."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import matplotlib.style
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shardbench.errors import RunError, UsageError
from shardbench.extract import NANOSECONDS, Extract, Names
from shardbench.plot import BUCKETS, COPYING, OPTIMIZING, STYLE, WAITING
from shardbench.units import MILLISECONDS, number

MICROSECONDS = 1e6
"""Microseconds in a second."""

MOST_RANKS = 16
"""More cannot be told apart on a page."""
WIDTH_INCHES, LANE_INCHES = 10.0, 0.3
PIXELS_PER_INCH = 150
LAYER_MAP = "viridis"  # readable in grey, and by the colour-blind

COMPUTE_COLOURS = {"wait": WAITING, "copy": COPYING, "optimizer": OPTIMIZING}
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
    layers = Normalize(0, names.layers + 1)
    queues = {
        (axis, kind): names.queue(kind, axis)
        for axis, kind in events.loc[events["stream"] == "comm", ["axis", "kind"]]
        .drop_duplicates()
        .to_numpy()
    }
    for index, rank in enumerate(ranks):
        _draw_rank(axes, 2.3 * index, events[events["rank"] == rank], layers, queues)
    _label_axes(axes, shown, ranks)
    _legend(axes, events, layers)
    if (events["layer"] >= 0).any():
        bar = figure.colorbar(ScalarMappable(layers, LAYER_MAP), ax=axes, pad=0.01, aspect=30)
        bar.set_label(f"layer: 0 embedding, {names.layers + 1} head")
        bar.locator = MaxNLocator(6, integer=True)
        bar.outline.set_visible(False)
    lanes = sorted(set(queues.values()))
    below = f" (from above: {', '.join(lanes)})" if len(lanes) > 1 else ""
    heading = [_title(shown), f"Upper lane of a rank: compute; lower lane: communication{below}", *notes]
    axes.set_title("\n".join(heading), loc="left", fontsize=11, pad=26)  # above the legend
    return figure


def _draw_rank(
    axes: Axes, top: float, events: pd.DataFrame, layers: Normalize, queues: Mapping[tuple[str, str], str]
) -> None:
    compute = events[events["stream"] == "compute"]
    _draw_lane(axes, compute, top, 0.95, [_compute_colour(*row, layers) for row in _looks(compute)], "")
    # Communicators work side by side: each gets a share of the lane.
    shares = sorted(set(queues.values()))
    for (axis, kind), queue in queues.items():
        rows = events[(events["stream"] == "comm") & (events["axis"] == axis) & (events["kind"] == kind)]
        colours = [_layer_colour(layer, layers) for layer in rows["layer"]]
        height = 0.95 / len(shares)
        _draw_lane(axes, rows, top + 1 + shares.index(queue) * height, height, colours, HATCHES.get(kind, ""))


def _looks(compute: pd.DataFrame) -> Iterator[tuple[str, str, int]]:
    yield from zip(compute["kind"], compute["phase"], compute["layer"])


def _compute_colour(kind: str, phase: str, layer: int, layers: Normalize) -> object:
    look = "copy" if kind.startswith("copy") else kind
    if look == "compute" and phase == "optimizer":
        look = phase
    return COMPUTE_COLOURS.get(look) or _layer_colour(layer, layers)


def _layer_colour(layer: int, layers: Normalize) -> object:
    return colormaps[LAYER_MAP](layers(layer)) if layer >= 0 else BUCKETS


def _draw_lane(
    axes: Axes, rows: pd.DataFrame, top: float, height: float, colours: list[object], hatch: str
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


def _legend(axes: Axes, events: pd.DataFrame, layers: Normalize) -> None:
    """Only what is there; above the lanes."""
    kinds = set(events["kind"])
    has_optimizer = ((events["kind"] == "compute") & (events["phase"] == "optimizer")).any()
    patches = [Patch(facecolor=WAITING, label="waits for communication")] * ("wait" in kinds)
    patches += [Patch(facecolor=COPYING, label="copies")] * bool(kinds & {"copy_in", "copy_out"})
    patches += [Patch(facecolor=OPTIMIZING, label="optimizer")] * bool(has_optimizer)
    has_layers = (events.loc[events["stream"] == "comm", "layer"] >= 0).any()
    colour = _layer_colour((layers.vmax or 0) // 2 if has_layers else -1, layers)
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
