"""From how many ranks on zero3's communication no longer hides behind compute, in closed form. Pure functions.

Of one block, with prefetch 1: its all-gather travels while the block before it computes forward; backward, a reduce-scatter
and the next all-gather travel, one after the other, while one block computes. NCCL's rings over N ranks on m nodes of g take

    t(N) = base + (m-1) a_n + (N-m) a_i + (N-1)/N S/(f B)          m = N/g

each (src/comm/nccl_model.hpp), whichever protocol is fastest. Seconds, bytes, bytes/s.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import inf, sqrt
from typing import Any

# Of what LL sends, half is flags.
LL_FRACTION = 0.5


@dataclass(frozen=True)
class Ring:
    """One protocol's rings over whole nodes. `bandwidth`: the bus bandwidth that its data reach, f B."""

    protocol: str
    base_s: float
    in_node_s: float
    between_nodes_s: float
    bandwidth: float

    def mean_hop_s(self, gpus: int) -> float:
        """What one more rank adds: of g hops one leaves the node."""
        return (self.between_nodes_s + (gpus - 1) * self.in_node_s) / gpus


@dataclass(frozen=True)
class Machine:
    """`values`: a platform's, by dotted key (`shardbench.platforms`)."""

    values: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        return int(self.values["node.gpus"])

    def rings(self, nodes: int) -> tuple[Ring, ...]:
        """By protocol."""
        g, nccl = self.gpus, {k[5:]: v for k, v in self.values.items() if k.startswith("nccl.")}
        in_node = self.values["node.gpu_link_bandwidth"] * nccl["gpu_link_efficiency"]
        between = g * self.values["node.nic_bandwidth"] * nccl["network_efficiency"]
        # g rings, each of which passes g-1 links of a node and leaves it through another NIC.
        bus = in_node if nodes == 1 else min(in_node * g / (g - 1), between) if g > 1 else between
        bandwidths = (
            min(LL_FRACTION * bus, nccl["ll_max_bandwidth"][min(nodes, 3) - 1]),
            min(nccl["ll128_fraction"] * bus, nccl["channels"] * nccl["ll128_channel_bandwidth"]),
            bus,
        )
        factors = (nccl["ll_multi_node_hop_factor"] if nodes > 1 else 1.0, 1.0, 1.0)
        return tuple(
            Ring(
                name,
                nccl["base_us.ring"][p] * 1e-6,
                nccl["gpu_link_hop_us.ring"][p] * 1e-6 * factors[p],
                nccl["network_hop_us.ring"][p] * 1e-6,
                bandwidths[p],
            )
            for p, name in enumerate(("LL", "LL128", "Simple"))
        )

    def fastest(self, ranks: int, size: int) -> Ring:
        return min(self.rings(ranks // self.gpus), key=lambda ring: self._seconds(ring, ranks, size))

    def seconds(self, ranks: int, size: int) -> float:
        """All-gather or reduce-scatter of `size` bytes (nccl-tests' S) over whole nodes."""
        return self._seconds(self.fastest(ranks, size), ranks, size)

    def _seconds(self, ring: Ring, ranks: int, size: int) -> float:
        nodes = ranks // self.gpus
        hops = (nodes - 1) * ring.between_nodes_s + (ranks - nodes) * ring.in_node_s
        return ring.base_s + hops + (ranks - 1) / ranks * size / ring.bandwidth


@dataclass(frozen=True)
class Window:
    """What has to travel while one block's work passes: `whole_s`, and `shard_s` / N for copies of shards."""

    whole_s: float
    shard_s: float
    sizes: tuple[int, ...]

    def seconds(self, ranks: int) -> float:
        return self.whole_s + self.shard_s / ranks


class Layout(Enum):
    """How a block is sharded: as one vector, or each parameter by itself (--layout)."""

    FLAT = "flat"
    PER_PARAMETER = "per-parameter"


@dataclass(frozen=True)
class Block:
    """Its parameters, and how long they compute."""

    elements: int
    forward_s: float
    backward_s: float


def windows(machine: Machine, block: Block, layout: Layout) -> tuple[Window, Window]:
    """Forward and backward of a block that is gathered in bf16 and reduced in fp32.

    Compute is not all that a block does. Gradients are copied into the reduction (fp32), and parameters of their own
    shards out of the gather (bf16); the shard is copied into the next gather (bf16), and the reduced one is cast into the
    resting gradients. Each is one kernel that reads and writes. Padding is left out.
    """
    copies, launch = Copies(machine, block.elements), machine.values["gpu.launch_s"]
    copy_out = copies.seconds(2, 2) + launch if layout is Layout.PER_PARAMETER else 0.0
    gather, reduce = 2 * block.elements, 4 * block.elements
    return (
        Window(block.forward_s + copy_out + launch, copies.seconds(2, 2), (gather,)),
        Window(
            block.backward_s + copy_out + copies.seconds(4, 4) + 3 * launch,
            copies.seconds(2, 2) + copies.seconds(4, 2),
            (reduce, gather),
        ),
    )


@dataclass(frozen=True)
class Copies:
    """Of a block's elements, without launches."""

    machine: Machine
    elements: int

    def seconds(self, read_bytes: int, written_bytes: int) -> float:
        """Bytes of an element."""
        moved = self.elements * (read_bytes + written_bytes)
        return float(moved / self.machine.values["gpu.memory_bandwidth"])


def red_line(machine: Machine, window: Window) -> int:
    """The smallest N, in whole nodes, at which the window's collectives take longer than it.

    With several nodes their time is K + N mean_hop - V/N for each choice of protocols, the window W + w/N. So each choice
    has one root, and the fastest is too slow where all are: at the largest root.

    Raises:
        ValueError: hops cost nothing, and the window is long enough for any N.
    """
    g = machine.gpus
    for ranks in (g, 2 * g):  # whose protocols have limits of their own
        if sum(machine.seconds(ranks, size) for size in window.sizes) > window.seconds(ranks):
            return ranks
    root = max(
        _root(machine, window, choice) for choice in product(machine.rings(3), repeat=len(window.sizes))
    )
    if root == inf:
        raise ValueError("no latency, no red line: nccl.*_hop_us.ring are 0; set hops above 0")
    return max(3, int(root // g) + 1) * g


def _root(machine: Machine, window: Window, choice: Iterable[Ring]) -> float:
    """Of N mean_hop + constant - falling/N = 0."""
    constant, slope, falling = -window.whole_s, 0.0, window.shard_s
    for ring, size in zip(choice, window.sizes, strict=True):
        transfer = size / ring.bandwidth
        constant += ring.base_s - ring.between_nodes_s + transfer
        slope += ring.mean_hop_s(machine.gpus)
        falling += transfer
    if slope == 0.0:
        return inf if constant < 0 else 0.0
    return (-constant + sqrt(constant**2 + 4 * slope * falling)) / (2 * slope)
