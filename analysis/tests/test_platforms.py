import json
from pathlib import Path

import pytest

from shardbench.platforms import KEYS, PlatformError, described, load_platform, shipped_names

NVLINK_4 = 450e9


def test_the_promised_platforms_are_there() -> None:
    assert {"h100-fat-tree", "h100-fat-tree-4to1", "ethernet", "flat"} <= set(shipped_names())


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_platforms_are_whole(name: str) -> None:
    platform = load_platform(name)
    assert platform.values.keys() == KEYS.keys()
    assert platform.name == name
    assert not platform.changed


def test_a_platform_takes_over_what_it_does_not_say() -> None:
    base, derived = load_platform("h100-fat-tree"), load_platform("h100-fat-tree-4to1")
    different = {key for key in KEYS if base.values[key] != derived.values[key]}
    assert different == {"description", "network.oversubscription"}


def test_changes_replace_and_are_recorded() -> None:
    changes = ["node.nic_bandwidth=25e9", "nccl.base_us.ring=[1, 2.5, 3]", "gpu.name=B200", "node.gpus=4"]
    platform = load_platform("h100-fat-tree", changes)
    assert platform.changed == {
        "node.nic_bandwidth": 25e9,
        "nccl.base_us.ring": [1, 2.5, 3],
        "gpu.name": "B200",
        "node.gpus": 4,
    }
    description = json.loads(json.dumps(platform.description(ranks=24)))
    assert description["node"]["nic_bandwidth"] == 25e9
    assert description["node"]["gpu_link_bandwidth"] == NVLINK_4
    assert description["nccl"]["base_us"]["ring"] == [1, 2.5, 3]
    assert description["changed"] == platform.changed
    assert (description["name"], description["ranks"]) == ("h100-fat-tree", 24)


def test_ranks_fill_nodes_in_order() -> None:
    platform = load_platform("h100-fat-tree", ["node.gpus=3"])
    assert list(platform.hosts(5)) == ["node0-gpu0", "node0-gpu1", "node0-gpu2", "node1-gpu0", "node1-gpu1"]
    assert [platform.nodes(ranks) for ranks in (1, 3, 4)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["node.nic_bandwith=1e9"], ["no key 'node.nic_bandwith'", "did you mean node.nic_bandwidth?"]),
        (["xyzzy=1"], ["no key 'xyzzy'", "node.gpus"]),
        (["node=1"], ["no key 'node'"]),
        (["node.gpus"], ["says no value", "KEY=VALUE"]),
        (["node.gpus=8.0"], ["node.gpus is 8.0", "integer"]),
        (["node.gpus=true"], ["node.gpus is True", "integer"]),
        (["node.gpus=0"], ["node.gpus is 0"]),
        (["node.nic_bandwidth=0"], ["from 1 to 1e21"]),
        (["node.nic_bandwidth=inf"], ["from 1 to 1e21"]),
        (["node.nic_bandwidth=nan"], ["from 1 to 1e21"]),
        (["node.nic_bandwidth=fast"], ["'fast'", "from 1 to 1e21"]),
        (["node.nic_bandwidth=1e-300"], ["from 1 to 1e21"]),
        (["node.nic_latency_s=1e300"], ["from 0 to 1000"]),
        (["nccl.channels=4294967297"], ["from 1 to 1000000"]),
        (["node.gpus=5000"], ["from 1 to 1024"]),
        (["nccl.pat_log_divisor=0"], ["above 0"]),
        (["node.nic_latency_s=-1e-6"], ["from 0"]),
        (["gpu.efficiency=1.01"], ["at most 1"]),
        (["network.topology=torus"], ["fat-tree", "flat"]),
        (["nccl.base_us.ring=[1, 2]"], ["three numbers"]),
        (["network.oversubscription=5"], ["leaf_nodes = 32", "oversubscription = 5"]),
    ],
)
def test_wrong_changes_are_refused_in_one_line(changes: list[str], words: list[str]) -> None:
    with pytest.raises(PlatformError) as refusal:
        load_platform("h100-fat-tree", changes)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_platform_names_the_others() -> None:
    with pytest.raises(PlatformError) as refusal:
        load_platform("h100-fattree")
    assert "did you mean h100-fat-tree?" in str(refusal.value)
    assert all(name in str(refusal.value) for name in shipped_names())


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('based_on = "flat"\n[node]\nnic_bandwidth = 1e9\n', encoding="utf-8")
    platform = load_platform(str(own))
    assert platform.name == "own"
    assert platform.values["node.nic_bandwidth"] == 1e9
    assert platform.values["node.gpus"] == 1
    (tmp_path / "next.toml").write_text('based_on = "own.toml"\n', encoding="utf-8")
    assert load_platform(str(tmp_path / "next.toml")).values == platform.values


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[node", ["cannot be read"]),
        ('based_on = "flat"\n[node]\ngpu = 8\n', ["key 'node.gpu'", "did you mean node.gpus?"]),
        ("[node]\ngpus = 8\n", ["lacks the key 'description'"]),
        ('based_on = "nowhere"\n', ["no platform 'nowhere'"]),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path: Path, content: str, words: list[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(content, encoding="utf-8")
    with pytest.raises(PlatformError) as refusal:
        load_platform(str(own))
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_circle_of_files_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text('based_on = "second.toml"\n', encoding="utf-8")
    second.write_text('based_on = "../' + tmp_path.name + '/first.toml"\n', encoding="utf-8")
    with pytest.raises(PlatformError, match="based on itself"):
        load_platform(str(first))


@pytest.mark.parametrize("name", shipped_names())
def test_a_trace_and_a_file_give_the_machine_back(name: str, tmp_path: Path) -> None:
    platform = load_platform(name, ["node.nic_bandwidth=25e9", 'gpu.name="a \\"B\\" \U0001f600\\u007f"'])
    again = described(json.loads(json.dumps(platform.description(64))))
    assert again == platform
    (tmp_path / f"{name}.toml").write_text(again.file_text(), encoding="utf-8")
    assert load_platform(str(tmp_path / f"{name}.toml")).values == platform.values
