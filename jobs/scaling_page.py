"""The page that jobs/scaling.py writes: its tables, sentences and figures, all from simulations and the closed form."""

from collections.abc import Iterable, Mapping, Sequence
from math import log2
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from scaling_study import (
    ALGORITHMS,
    BLOCK,
    FAT_TREE,
    HOPS,
    OTHER_PLATFORMS,
    ROWS_COLUMNS,
    Failure,
    Grid,
    Place,
    Simulations,
    block_compute,
    closed_form,
    gather,
    mesh2d,
    mesh2d_events,
    places,
    zero3,
)
from shardbench.platforms import load_platform
from shardbench.plot import INK, SERIES_COLOURS, SERIES_MARKERS, STYLE
from shardbench.redline import Block, Layout, Machine, red_line, windows

LIMITS = (0.1, 0.5)
FOLKLORE = 512


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def joined(words: Iterable[object]) -> str:
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last


def require(claim: str, holds: bool) -> None:
    if not holds:
        raise Failure(f"the page says that {claim}, but its data do not; change the template")


class Page:
    """What the template asks for. Every figure comes from simulations or from the closed form."""

    def __init__(self, sims: Simulations, grid: Grid, red_lines: Mapping[Place, int]) -> None:
        self.sims, self.grid, self.red_lines = sims, grid, red_lines
        self.machine = Machine(load_platform(FAT_TREE).values)
        self.block, self.folklore = BLOCK, FOLKLORE
        self.largest_ranks = max(grid.ranks)

    def zero3_command(self) -> str:
        run = zero3(self.grid, 8, 1)
        words = replace_word(replace_word(run.words, "--seq", "T"), "--prefetch", "P")
        return f"shardbench {' '.join(replace_word(words, '--ranks', 'N'))}"

    def platform_command(self) -> str:
        return self.zero3_command().replace(FAT_TREE, "PLATFORM").replace("--prefetch P", "--prefetch 1")

    def mesh_command(self) -> str:
        words = mesh2d(self.grid, 8, 1).words
        return f"shardbench {' '.join(replace_word(replace_word(words, '--seq', 'T'), '--ranks', 'N'))}"

    def gather_command(self) -> str:
        words = gather(8, "ALGORITHM").words
        return f"shardbench {' '.join(replace_word(words, '--ranks', 'N'))}"

    def red_line_command(self) -> str:
        words = Place(1, 1.0).runs(8)[0].words
        words = replace_word(replace_word(words, "--layers", "4|6"), "--seq", "T")
        return f"shardbench {' '.join(replace_word(words, '--ranks', 'N'))}".replace(
            " -- ", "".join(f" --set {key}=[...]" for key in HOPS) + " -- "
        )

    def share(self, ranks: int, tokens: int, prefetch: int = 1, platform: str = FAT_TREE) -> float:
        figures = self.sims.get(zero3(self.grid, ranks, tokens, prefetch, platform))
        return float(figures["exposed_s"] / figures["step_s"])

    def prefetch_table(self, tokens: int) -> str:
        rows = []
        for ranks in self.grid.ranks:
            row: list[object] = [ranks]
            for prefetch in (0, 1, 2):
                figures = self.sims.get(zero3(self.grid, ranks, tokens, prefetch))
                rate = figures["tokens_of_rank"] / figures["step_s"]
                row += [ms(figures["step_s"]), f"{rate:,.0f}", percent(figures["exposed_s"] / figures["step_s"])]
            rows.append(row)
        names = ("step, ms", "tokens/s/GPU", "exposed")
        return table(["N", *(f"{name}, p{p}" for p in (0, 1, 2) for name in names)], rows)

    def crossing(self, tokens: int, prefetch: int, limit: float) -> str:
        for ranks in self.grid.ranks:
            if self.share(ranks, tokens, prefetch) > limit:
                return str(ranks)
        return f"> {self.largest_ranks}"

    def crossing_table(self) -> str:
        rows = [
            [tokens, *(self.crossing(tokens, p, limit) if p == 1 or tokens in self.grid.prefetch_tokens else ""
                       for limit in LIMITS for p in (0, 1, 2))]
            for tokens in self.grid.tokens
        ]  # fmt: skip
        return table(["tokens per GPU", *(f"> {100 * limit:.0f} %, p{p}" for limit in LIMITS for p in (0, 1, 2))], rows)

    def second_prefetch_gain(self) -> str:
        """What prefetch 2 saves of a step at best, against prefetch 1."""
        steps = ([self.sims.get(zero3(self.grid, n, t, p))["step_s"] for p in (1, 2)]
                 for t in self.grid.prefetch_tokens for n in self.grid.ranks)  # fmt: skip
        return percent(max(1 - two / one for one, two in steps))

    def hop(self, place: Place) -> float:
        """Mean hop of LL128's rings, seconds."""
        return next(r for r in place.machine.rings(3) if r.protocol == "LL128").mean_hop_s(place.machine.gpus)

    def mean_hop_us(self) -> str:
        return f"{1e6 * self.hop(Place(1, 1.0)):.2f}"

    def latency_sentence(self) -> str:
        ring = next(ring for ring in self.machine.rings(3) if ring.protocol == "LL128")
        inside, between = (self.machine.gpus - 1) * ring.in_node_s, ring.between_nodes_s
        require("hops over NVLink are the larger part", inside > between)
        return (f"Of the latency of NCCL's rings {percent(inside / (inside + between))} are hops over NVLink: there are"
                f" {self.machine.gpus - 1} of them for each hop between nodes.")  # fmt: skip

    def network_hop_us(self) -> str:
        ring = next(ring for ring in self.machine.rings(3) if ring.protocol == "LL128")
        return f"{1e6 * ring.between_nodes_s:g}"

    def compute(self, tokens: int) -> dict[str, float]:
        return dict(self.sims.get(block_compute(tokens))["block"])

    def red_line_cell(self, place: Place) -> str:
        closed = min(closed_form(self.sims, place))
        return f"{closed:,} / {self.red_lines[place]:,}" if place in self.red_lines else f"{closed:,}"

    def surface_table(self) -> str:
        scales = self.grid.latency_scales
        heads = [f"ᾱ = {1e6 * self.hop(Place(1, scale)):.2f} µs (× {scale:g})" for scale in scales]
        rows = [
            [tokens, *(ms(self.compute(tokens)[d]) for d in ("forward", "backward")),
             *(self.red_line_cell(Place(tokens, scale)) for scale in scales)]
            for tokens in self.grid.red_tokens
        ]  # fmt: skip
        return table(["tokens per GPU", "block forward, ms", "backward, ms", *heads], rows)

    def network_table(self) -> str:
        points = [Place(self.grid.network_tokens, s, HOPS[1:]) for s in self.grid.network_scales]
        rows = [[f"× {p.scale:g}", f"{1e6 * self.hop(p):.2f}", self.red_line_cell(p)] for p in points]
        return table(["hop between nodes", "ᾱ, µs", "N*"], rows)

    def regimes_table(self) -> str:
        rows = []
        for tokens in self.grid.red_tokens:
            place = Place(tokens, 1.0)
            forward, backward = closed_form(self.sims, place)
            at = max(min(forward, backward), 3 * self.machine.gpus)
            protocols = {self.machine.fastest(at, size).protocol for size in (2 * BLOCK, 4 * BLOCK)}
            rows.append([tokens, f"{forward:,}", f"{backward:,}", joined(sorted(protocols))])
        return table(["tokens per GPU", "N* forward", "N* backward", "protocol there"], rows)

    def disagreements(self) -> list[tuple[int, int]]:
        """Closed form and simulated, where they differ."""
        pairs = [(min(closed_form(self.sims, place)), n) for place, n in self.red_lines.items()]
        return [(closed, simulated) for closed, simulated in pairs if closed != simulated]

    def agreement_sentence(self) -> str:
        points, differing = len(self.red_lines), self.disagreements()
        if not differing:
            return f"All {points} points agree to the node."
        nodes = max(abs(closed - simulated) // self.machine.gpus for closed, simulated in differing)
        worst = max(abs(simulated / closed - 1) for closed, simulated in differing)
        listed = joined(f"{closed} / {simulated}" for closed, simulated in differing)
        return (f"{points - len(differing)} of {points} points agree to the node; {listed} differ by at most {nodes} node"
                f"{'s' * (nodes > 1)} ({percent(worst)}). There a few µs a block are missing, and six blocks hide them: a"
                " block's delay up to the launch of a copy does not show.")  # fmt: skip

    def padding(self, ranks: int) -> float:
        """Of a block of per-parameter shards: what ceil(rows/N) N rows have beyond the rows."""
        return sum(-(-rows // ranks) * ranks * columns for rows, columns in ROWS_COLUMNS) / BLOCK - 1

    def ragged_ranks(self) -> int:
        """Where padding is worst, among the N* of the table."""
        return max(self.red_lines.values(), key=self.padding)

    def binding(self) -> str:
        pairs = [closed_form(self.sims, place) for place in places(self.grid)]
        require("backward binds everywhere", all(backward <= forward for forward, backward in pairs))
        return "backward"

    def tokens_at(self, ranks: int, scale: float) -> int | None:
        """Tokens per GPU at which N* is `ranks`; compute between sampled lengths is interpolated."""
        machine = Place(1, scale).machine
        sampled = sorted({*self.grid.tokens, *self.grid.red_tokens})
        known = [self.compute(tokens) for tokens in sampled]

        def lies_at(tokens: int) -> int:
            forward, backward = (
                float(np.exp(np.interp(np.log(tokens), np.log(sampled), np.log([k[d] for k in known]))))
                for d in ("forward", "backward")
            )
            return min(
                red_line(machine, window) for window in windows(machine, Block(BLOCK, forward, backward), Layout.FLAT)
            )

        low, high = sampled[0], sampled[-1]
        if lies_at(low) >= ranks or lies_at(high) < ranks:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if lies_at(middle) < ranks else (low, middle)
        return high

    def folklore_table(self) -> str:
        tokens = [self.tokens_at(FOLKLORE, scale) for scale in self.grid.latency_scales]
        return table(["ᾱ, µs", *(f"{1e6 * self.hop(Place(1, scale)):.2f}" for scale in self.grid.latency_scales)],
                     [[f"tokens per GPU at which N* is {FOLKLORE}", *(f"{t:,}" if t else "outside" for t in tokens)]])  # fmt: skip

    def gather_s(self, ranks: int, algorithm: str) -> float | None:
        if algorithm == "ring" and ranks > self.grid.ring_largest:
            return None
        return float(self.sims.get(gather(ranks, algorithm))["seconds"])

    def algorithms_table(self) -> str:
        def cells(ranks: int) -> Iterable[str]:
            for algorithm in ALGORITHMS:
                seconds = self.gather_s(ranks, algorithm)
                yield "" if seconds is None else ms(seconds)

        rows = [[n, *cells(n), ms(self.machine.seconds(n, 2 * BLOCK))] for n in self.grid.algorithm_ranks]
        return table(["N", *(f"`{algorithm}`" for algorithm in ALGORITHMS), "closed form of `nccl`"], rows)

    def ring_factor(self) -> str:
        """How much slower than nccl a rank-ordered ring is, on two nodes."""
        ranks = min(self.grid.algorithm_ranks)
        factor = (self.gather_s(ranks, "coarse") or 0.0) / (self.gather_s(ranks, "nccl") or 1.0)
        return f"{factor:.1f}"

    def hierarchical_sentence(self) -> str:
        ranks = max(self.grid.algorithm_ranks)
        ratio = (self.gather_s(ranks, "hierarchical") or 0.0) / (self.gather_s(ranks, "nccl") or 1.0)
        than = "slower" if ratio > 1 else "faster"
        return f"At N = {ranks} `hierarchical` is {max(ratio, 1 / ratio):.2f} times {than} than `nccl`."

    def oversubscription_sentence(self) -> str:
        values = load_platform(OTHER_PLATFORMS[0]).values
        nodes, links = values["network.leaf_nodes"], values["network.leaf_nodes"] // values["network.oversubscription"]
        slower = {n: self.sims.get(zero3(self.grid, n, t, 1, OTHER_PLATFORMS[0]))["step_s"]
                  / self.sims.get(zero3(self.grid, n, t))["step_s"] - 1
                  for t in self.grid.prefetch_tokens[:2] for n in self.grid.platform_ranks}  # fmt: skip
        require("rings do not notice oversubscription", all(abs(x) < 1e-6 for x in slower.values()))
        return (f"Its rings do not notice: of the {nodes} nodes at a leaf only one sends beyond it, and {links} links remain, each"
                " as fast as a node's NICs together. What shares the network with them would.")  # fmt: skip

    def memory_sentence(self, gigabytes: float) -> str:
        tokens = self.grid.prefetch_tokens[0]
        peaks = [self.sims.get(run)["peak_bytes"] / 1e9
                 for n in self.grid.mesh_ranks for run in (zero3(self.grid, n, tokens), mesh2d(self.grid, n, tokens))]  # fmt: skip
        verdict = "do not fit" if min(peaks) > gigabytes else "do not all fit" if max(peaks) > gigabytes else "fit"
        return (f"At {tokens:,} tokens per GPU peaks are {min(peaks):.0f} to {max(peaks):.0f} GB and {verdict} a GPU of"
                f" {gigabytes:g} GB: simulation has no such limit.")  # fmt: skip

    def exposed_tp_s(self, tokens: int) -> float:
        """Measured at 8 GPUs; groups of 8 within nodes do not know of others."""
        eight, sixteen = (self.sims.get(mesh2d_events(self.grid, n, tokens))["exposed_tp_s"] for n in (8, 16))
        require("what tp exposes does not depend on N", abs(sixteen / eight - 1) < 0.01)
        return float(eight)

    def mesh_table(self, tokens: int) -> str:
        rows = []
        tp_s = self.exposed_tp_s(tokens)
        for n in self.grid.mesh_ranks:
            mesh, flat = self.sims.get(mesh2d(self.grid, n, tokens)), self.sims.get(zero3(self.grid, n, tokens))
            winner = "mesh2d" if mesh["step_s"] < flat["step_s"] else "zero3"
            rows.append([n, n // 8, ms(flat["step_s"]), ms(mesh["step_s"]), ms(flat["exposed_s"]),
                         ms(max(0.0, mesh["exposed_s"] - tp_s)), ms(tp_s), f"{flat['peak_bytes'] / 1e9:.1f}",
                         f"{mesh['peak_bytes'] / 1e9:.1f}", winner])  # fmt: skip
        return table(["N", "dp", "zero3 step, ms", "mesh2d step, ms", "zero3 exposed, ms", "mesh2d exposed dp",
                      "exposed tp", "zero3 peak, GB", "mesh2d peak, GB", "shorter"], rows)  # fmt: skip

    def mesh_wins(self, tokens: int) -> str:
        wins = [n for n in self.grid.mesh_ranks
                if self.sims.get(mesh2d(self.grid, n, tokens))["step_s"]
                < self.sims.get(zero3(self.grid, n, tokens))["step_s"]]  # fmt: skip
        if not wins:
            return f"nowhere up to N = {max(self.grid.mesh_ranks):,}"
        if len(wins) == len(self.grid.mesh_ranks):
            return "at every N of the table"
        return f"at N = {joined(f'{n:,}' for n in wins)}"

    def platforms_table(self, tokens: int) -> str:
        rows = []
        for n in self.grid.platform_ranks:
            row: list[object] = [n]
            for platform in (FAT_TREE, *OTHER_PLATFORMS):
                step_s = self.sims.get(zero3(self.grid, n, tokens, 1, platform))["step_s"]
                row += [ms(step_s), percent(self.share(n, tokens, 1, platform))]
            rows.append(row)
        names = (FAT_TREE, *OTHER_PLATFORMS)
        return table(["N", *(f"{name}, {what}" for name in names for what in ("step, ms", "exposed"))], rows)

    # --- figures

    def draw(self, folder: Path) -> None:
        matplotlib.style.use(STYLE)
        self._draw_shares().savefig(folder / "scaling-exposed.svg", metadata={"Date": None}, bbox_inches="tight")
        self._draw_surface().savefig(folder / "scaling-red-line.svg", metadata={"Date": None}, bbox_inches="tight")

    def _draw_shares(self) -> Figure:
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.subplots()
        for tokens, colour, marker in zip(self.grid.tokens, SERIES_COLOURS, SERIES_MARKERS):
            shares = [100 * self.share(n, tokens) for n in self.grid.ranks]
            axes.plot(self.grid.ranks, shares, color=colour, marker=marker, label=f"{tokens:,}", ms=4)
        for limit in LIMITS:
            axes.axhline(100 * limit, color=INK, lw=0.6, ls=":")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(self.grid.ranks))
        axes.set_xticks(self.grid.ranks, [str(n) for n in self.grid.ranks])
        axes.set(xlabel="GPUs", ylabel="exposed, % of a step", ylim=(0, 100))
        axes.legend(title="tokens per GPU", frameon=False)
        return figure

    def _draw_surface(self) -> Figure:
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.subplots()
        for scale, colour, marker in zip(self.grid.latency_scales, SERIES_COLOURS, SERIES_MARKERS):
            points = [Place(tokens, scale) for tokens in self.grid.red_tokens]
            closed = [min(closed_form(self.sims, place)) for place in points]
            axes.plot(self.grid.red_tokens, closed, color=colour, label=f"{1e6 * self.hop(points[0]):.2f}")
            found = [p for p in points if p in self.red_lines]
            axes.plot(
                [p.tokens for p in found], [self.red_lines[p] for p in found], color=colour, marker=marker, ls="", ms=5
            )
        axes.axhline(FOLKLORE, color=INK, lw=0.6, ls=":")
        axes.annotate(str(FOLKLORE), (max(self.grid.red_tokens), FOLKLORE), va="bottom", ha="right")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(self.grid.red_tokens, [f"{t:,}" for t in self.grid.red_tokens])
        axes.xaxis.set_minor_locator(NullLocator())
        exponents = range(3, int(log2(axes.get_ylim()[1])) + 1)
        axes.set_yticks([2**e for e in exponents], [f"{2**e:,}" for e in exponents])
        axes.set(xlabel="tokens per GPU", ylabel="red line N*, GPUs")
        axes.legend(title="mean hop, µs", frameon=False)
        return figure


def replace_word(words: Sequence[str], option: str, value: str) -> list[str]:
    place = list(words).index(option) + 1
    return [*words[:place], value, *words[place + 1 :]]
