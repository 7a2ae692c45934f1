"""The closed form of the red line: worked numbers, its definition, and what must not depend on it."""

import pytest

from shardbench.platforms import load_platform
from shardbench.redline import Block, Layout, Machine, Window, red_line, windows

FAT_TREE = Machine(load_platform("h100-fat-tree").values)
FLAT = Machine(load_platform("flat").values)
GATHER, REDUCE = 436_224_000, 872_448_000  # a block of 8b: bf16, fp32


def changed(*changes: str) -> Machine:
    return Machine(load_platform("h100-fat-tree", changes).values)


def test_one_gather_by_hand() -> None:
    # LL128 on 128 nodes of 8: 14 + 127 * 4 + 896 * 1.9 us; 92 % of 8 NICs at 47 GB/s.
    latency = 14e-6 + 127 * 4e-6 + 896 * 1.9e-6
    assert FAT_TREE.fastest(1024, GATHER).protocol == "LL128"
    assert FAT_TREE.seconds(1024, GATHER) == pytest.approx(
        latency + 1023 / 1024 * GATHER / (0.92 * 376e9), rel=1e-12
    )


def test_one_node_has_its_own_bandwidth() -> None:
    # Simple, 7 hops over NVLink at 82.4 % of 450 GB/s.
    assert FAT_TREE.seconds(8, GATHER) == pytest.approx(
        8.4e-6 + 7 * 3.4e-6 + 7 / 8 * GATHER / (0.824 * 450e9), rel=1e-12
    )


def test_small_messages_take_ll() -> None:
    assert FAT_TREE.fastest(64, 1000).protocol == "LL"
    # 8 nodes; hops inside take 1 us there instead of 0.6.
    latency = 6.6e-6 + 7 * 2.7e-6 + 56 * 0.6e-6 * 1.6667
    assert FAT_TREE.seconds(64, 1000) == pytest.approx(latency, rel=1e-3)


@pytest.mark.parametrize("sizes", [(GATHER,), (REDUCE, GATHER)])
@pytest.mark.parametrize("seconds", [3e-3, 5e-3, 12e-3, 23e-3, 0.1])
@pytest.mark.parametrize("scale", [0.25, 1, 4])
def test_the_red_line_is_where_the_definition_says(
    sizes: tuple[int, ...], seconds: float, scale: float
) -> None:
    hops = {"gpu_link": (0.6, 1.9, 3.4), "network": (2.7, 4.0, 14.0)}
    machine = changed(*(f"nccl.{k}_hop_us.ring={[scale * x for x in v]}" for k, v in hops.items()))

    window = Window(seconds, 1e-3, sizes)

    def is_exposed(ranks: int) -> bool:
        return sum(machine.seconds(ranks, size) for size in sizes) > window.seconds(ranks)

    line = red_line(machine, window)
    assert line % 8 == 0
    assert is_exposed(line)
    assert line == 8 or not is_exposed(line - 8)
    assert next(n for n in range(8, line + 8, 8) if is_exposed(n)) == line


def test_a_node_that_is_too_slow_is_the_red_line_itself() -> None:
    assert red_line(FAT_TREE, Window(1e-6, 0.0, (GATHER,))) == 8


def test_without_latency_there_is_no_red_line() -> None:
    none = [f"nccl.{kind}_hop_us.ring=[0,0,0]" for kind in ("gpu_link", "network")]
    with pytest.raises(ValueError, match="no latency"):
        red_line(changed(*none), Window(1.0, 0.0, (GATHER,)))


def test_latency_of_one_ring_is_the_textbooks_with_the_mean_hop() -> None:
    """One GPU a node: the mean hop is alpha itself, and t(N) = base + (N-1) alpha + (N-1)/N S/B."""
    ring = next(ring for ring in FLAT.rings(64) if ring.protocol == "Simple")
    assert ring.mean_hop_s(1) == pytest.approx(10e-6)
    assert FLAT.seconds(64, 10**9) == pytest.approx(10e-6 + 63 * 10e-6 + 63 / 64 * 0.1)


def test_windows_hold_what_travels_and_all_that_a_block_does() -> None:
    block = Block(elements=GATHER // 2, forward_s=11e-3, backward_s=22e-3)
    launch, bandwidth = 5e-6, 3.35e12
    copy_out = 4 * block.elements / bandwidth + launch
    for layout, more in ((Layout.FLAT, 0.0), (Layout.PER_PARAMETER, copy_out)):
        forward, backward = windows(FAT_TREE, block, layout)
        assert (forward.sizes, backward.sizes) == ((GATHER,), (REDUCE, GATHER))
        shard = block.elements / 8 / bandwidth
        assert forward.seconds(8) == pytest.approx(11e-3 + more + 4 * shard + launch)
        assert backward.seconds(8) == pytest.approx(22e-3 + more + 64 * shard + 10 * shard + 3 * launch)
