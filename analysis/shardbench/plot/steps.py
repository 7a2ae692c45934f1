"""The timeline of one step: what two streams did, layers coloured."""

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from shardbench.onestep import Lane, OneStep, Span
from shardbench.plot.canvas import WIDTH_INCHES
from shardbench.plot.layers import BUCKETS, COPYING, OPTIMIZING, WAITING, layer_scale, operation_colour
from shardbench.units import MILLISECONDS


def timeline(step: OneStep, layers: int) -> Figure:
    """A row for compute and one for each direction of the stream comm; layers from 0 to `layers` + 1."""
    lanes = [lane for lane in Lane if any(span.lane is lane for span in step.spans)]
    figure = Figure(figsize=(WIDTH_INCHES, 1.85 + 0.36 * len(lanes)), layout="constrained")
    axes = figure.add_subplot()
    for row, lane in enumerate(lanes):
        spans = [span for span in step.spans if span.lane is lane]
        axes.broken_barh(
            [(span.start_s * MILLISECONDS, (span.end_s - span.start_s) * MILLISECONDS) for span in spans],
            (row - 0.4, 0.8),
            facecolors=[
                operation_colour(span.kind, span.layer, layers, span.lane is Lane.COMPUTE) for span in spans
            ],
            linewidth=0,
        )
    axes.set_yticks(range(len(lanes)), [lane.value for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, 1.005 * step.step_s * MILLISECONDS)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("time since the step began, ms")
    handles = list(_handles(step))
    if handles:
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncol=4)
    if any(span.layer >= 0 for span in step.spans):
        bar = figure.colorbar(
            layer_scale(layers), ax=axes, orientation="horizontal", fraction=0.06, pad=0.05, aspect=50
        )
        bar.set_label("layer (0 embedding, last: head)", size=9)
        bar.locator = MaxNLocator(8, integer=True)
        bar.update_ticks()
        bar.outline.set_visible(False)
        # As drawn by matplotlib, a colour bar's face would be a bitmap.
        bar.solids.set(rasterized=False, edgecolor="face")
    return figure


def _handles(step: OneStep) -> Iterator[Patch]:
    kinds = {span.kind for span in step.spans}
    if "wait" in kinds:
        yield Patch(color=WAITING, label="waits (exposed)")
    if kinds & {"copy_in", "copy_out"}:
        yield Patch(color=COPYING, label="copies")
    if any(span.lane is Lane.COMPUTE and span.kind == "compute" and span.layer < 0 for span in step.spans):
        yield Patch(color=OPTIMIZING, label="optimizer")
    if any(span.lane is not Lane.COMPUTE and span.layer < 0 for span in step.spans):
        yield Patch(color=BUCKETS, label="buckets")
