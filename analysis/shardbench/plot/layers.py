"""The colours of a step's operations: those of layers lie on a continuous map, what is no layer's does not."""

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize

from shardbench.plot.canvas import GREY, PURPLE, SKY, VERMILION

WAITING, COPYING, OPTIMIZING, BUCKETS = VERMILION, GREY, PURPLE, SKY

Colour = str | tuple[float, float, float, float]


def operation_colour(kind: str, layer: int, layers: int, is_compute: bool) -> Colour:
    """Of an event of one of the two streams; `layer` −1 is none: the optimizer, or a bucket's collective."""
    if kind == "wait":
        return WAITING
    if kind in ("copy_in", "copy_out"):
        return COPYING
    if layer >= 0:
        return layer_colour(layer, layers)
    return OPTIMIZING if is_compute else BUCKETS


def layer_colour(layer: int, layers: int) -> Colour:
    """The colour of a layer from 0 to `layers` + 1, dark to light in the order of forward."""
    # viridis is readable in grey, and by the colour-blind; its end is too light on white.
    red, green, blue, alpha = colormaps["viridis"](0.95 * layer / max(layers + 1, 1))
    return float(red), float(green), float(blue), float(alpha)


def layer_scale(layers: int) -> ScalarMappable:
    """For a colour bar: a field for each layer."""
    colours = ListedColormap([layer_colour(layer, layers) for layer in range(layers + 2)])
    return ScalarMappable(Normalize(-0.5, layers + 1.5), colours)
