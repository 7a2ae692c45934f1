"""Analysis of shardbench traces.

The layers, each using only those before it: `read` (the only user of h5py), `stats` and `units`
(pure functions), `validate` and `summary` (what the numbers of one file and of many files say),
`plot` (SVG), `report` (text table and HTML page), `cli`. Beside them `sweep` runs studies; of these it uses
`read` and `units`.
"""

__version__ = "0.1.0"
