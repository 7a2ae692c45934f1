"""Draws figures as SVG text to embed in a page.

Figures are narrow, and bars lie down, so that a figure grows in height and stays readable on a phone. Only what is
there is drawn: what is absent or zero is returned as a list of clauses, to be said below the figure.
"""

from shardbench.plot.canvas import INK, SERIES_COLOURS, SERIES_MARKERS, STYLE, Drawing, drawn

__all__ = [
    "INK",
    "SERIES_COLOURS",
    "SERIES_MARKERS",
    "STYLE",
    "Drawing",
    "drawn",
]
