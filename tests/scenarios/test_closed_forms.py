"""Simulated collectives take what their closed forms say.

The forms are written here from the platforms' figures alone; alpha is a route's latency, B a link's bandwidth, S the size as
nccl-tests defines it, n ranks on m nodes of g.
"""

import functools
import math
import os
import shutil
import sys
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest
import runs

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
MICRO = 1e-6

pytestmark = [
    pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed"),
    pytest.mark.skipif(not (runs.SIM_BIN / "collectives").exists(), reason=f"{runs.SIM_BIN}/collectives is not built (preset sim)"),
]


def simulated_s(platform: str, ranks: int, algorithm: str, block_bytes: int) -> dict[str, float]:
    """Seconds of each collective on buffers of n blocks."""
    output = runs.new_file()
    size = str(block_bytes * ranks)
    command = [sys.executable, "-m", "shardbench", "simulate", "collectives", "--ranks", str(ranks), "--platform", platform, "--",
               "--algorithm", algorithm, "-b", size, "-e", size, "-n", "1", "-w", "0", "-c", "0", "--output", str(output)]
    path = os.pathsep.join([str(runs.ROOT / "analysis"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    finished = runs.execute(command, runs.scratch_folder(), timeout_s=400, PYTHONPATH=path, SHARDBENCH_SIM_BIN=str(runs.SIM_BIN))
    assert finished.code == 0, str(finished)
    with h5py.File(output) as file:
        rows = file["collectives"][:]
    rows = rows[rows["warmup"] == 0]
    seconds = {}
    for collective in COLLECTIVES:
        own = rows[rows["collective"] == collective.encode()]
        assert sorted(own["rank"]) == list(range(ranks)) and set(own["size_bytes"]) == {block_bytes * ranks}, collective
        assert set(own["algorithm"]) == {algorithm.encode()}
        seconds[collective] = float(np.max(own["end_s"]) - np.min(own["start_s"]))
    return seconds


def passes(collective: str) -> int:
    return 2 if collective == "all_reduce" else 1


@functools.cache
def platform_file(name: str) -> dict:
    return tomllib.loads((Path(runs.ROOT) / f"jobs/platforms/{name}.toml").read_text())


def route_s(platform: dict, ranks: int) -> tuple[float, float]:
    """A message's latency inside a node, and the longest between nodes: two NICs, and two cables below one leaf, else four."""
    node, network = platform["node"], platform["network"]
    leaves = math.ceil(math.ceil(ranks / node["gpus"]) / network["leaf_nodes"])
    cables = 0 if network["topology"] == "flat" else 2 if leaves == 1 else 4
    return 2 * node["gpu_link_latency_s"], 2 * node["nic_latency_s"] + cables * network["link_latency_s"]


BLOCK = 64 << 10

def takes_long(*arguments: object) -> object:
    return pytest.param(*arguments, marks=pytest.mark.slow)


RINGS = [takes_long(n, a) if (n, a) == (256, "ring") else (n, a)
         for n in (16, 24, 64, 96, 256) for a in ("ring", "doubling", "coarse")]
LARGE = [(n, a) for n in (384, 1000, 1024) for a in ("doubling", "coarse")]


@pytest.mark.parametrize(("ranks", "algorithm"), RINGS + LARGE)
def test_flat(ranks: int, algorithm: str) -> None:
    platform = platform_file("flat")
    _, alpha = route_s(platform, ranks)
    rounds = math.ceil(math.log2(ranks)) if algorithm == "doubling" else ranks - 1
    moved_s = (ranks - 1) * BLOCK / platform["node"]["nic_bandwidth"]
    for collective, seconds in simulated_s("flat", ranks, algorithm, BLOCK).items():
        assert seconds == pytest.approx(passes(collective) * (rounds * alpha + moved_s), rel=1e-3), collective


@pytest.mark.parametrize("ranks", [64, 256, takes_long(1024)])
def test_hierarchical_on_a_fat_tree(ranks: int) -> None:
    """A ring of one block between nodes, then a ring of m blocks in each node."""
    platform = platform_file("h100-fat-tree")
    node = platform["node"]
    inside, between = route_s(platform, ranks)
    g, m = node["gpus"], ranks // node["gpus"]
    expected = (m - 1) * (between + BLOCK / node["nic_bandwidth"]) + (g - 1) * (inside + m * BLOCK / node["gpu_link_bandwidth"])
    for collective, seconds in simulated_s("h100-fat-tree", ranks, "hierarchical", BLOCK).items():
        assert seconds == pytest.approx(passes(collective) * expected, rel=5e-3), collective


def nccl_s(platform: dict, ranks: int, collective: str, size: int) -> float:
    """The fastest of rings and trees with each protocol, after NCCL's cost model."""
    node, nccl = platform["node"], platform["nccl"]
    g, m = node["gpus"], ranks // node["gpus"]
    # g rings of S/g: of what a GPU sends, 1/g leaves through its NIC and the rest over its link.
    bus = min(node["nic_bandwidth"] * nccl["network_efficiency"] * g,
              node["gpu_link_bandwidth"] * nccl["gpu_link_efficiency"] * g / (g - 1))
    moved = passes(collective) * size * (ranks - 1) / ranks
    ll_cap = nccl["ll_max_bandwidth"][min(m, 3) - 1] / bus
    ring_shares = [min(0.5, ll_cap), min(nccl["ll128_fraction"], nccl["channels"] * nccl["ll128_channel_bandwidth"] / bus), 1.0]
    tree_shares = [min(1 / 3.8, ll_cap), nccl["tree_fraction"] * nccl["ll128_fraction"], nccl["tree_fraction"]]
    seconds = []
    for protocol in range(3):
        factor = nccl["ll_multi_node_hop_factor"] if protocol == 0 else 1.0
        ring_in, ring_out = nccl["gpu_link_hop_us"]["ring"][protocol] * factor, nccl["network_hop_us"]["ring"][protocol]
        hops = passes(collective) * ((ranks - m) * ring_in + (m - 1) * ring_out)
        seconds.append((nccl["base_us"]["ring"][protocol] + hops) * MICRO + moved / (bus * ring_shares[protocol]))
        if collective == "all_reduce":
            tree_in, tree_out = nccl["gpu_link_hop_us"]["tree"][protocol] * factor, nccl["network_hop_us"]["tree"][protocol]
            depth = (g - 1) * tree_in + math.floor(math.log2(m)) * tree_out
            seconds.append((nccl["base_us"]["tree"][protocol] + 2 * depth) * MICRO + moved / (bus * tree_shares[protocol]))
    return min(seconds)


@pytest.mark.parametrize("ranks", [64, 256, 1024])
@pytest.mark.parametrize("block_bytes", [16, 4 << 10, 1 << 20])
def test_nccl_on_a_fat_tree(ranks: int, block_bytes: int) -> None:
    platform = platform_file("h100-fat-tree")
    for collective, seconds in simulated_s("h100-fat-tree", ranks, "nccl", block_bytes).items():
        assert seconds == pytest.approx(nccl_s(platform, ranks, collective, block_bytes * ranks), rel=5e-3), collective


def test_pat_with_one_gpu_a_node() -> None:
    """NCCL has it for all-gathers and reduce-scatters; it wins where latency counts."""
    platform = platform_file("flat")
    nccl, ranks = platform["nccl"], 64
    pat = (nccl["base_us"]["pat"] + 6 * nccl["network_hop_us"]["ring"][2] / nccl["pat_log_divisor"] + ranks * nccl["pat_rank_us"]) * MICRO
    seconds = simulated_s("flat", ranks, "nccl", 16)
    for collective in ("all_gather", "reduce_scatter"):
        assert seconds[collective] == pytest.approx(pat, rel=5e-2), collective
    # An all-reduce has the tree instead.
    tree = (nccl["base_us"]["tree"][0] + 2 * 6 * nccl["network_hop_us"]["tree"][0]) * MICRO
    assert seconds["all_reduce"] == pytest.approx(tree, rel=5e-2)
