"""Descriptions of machines to simulate: jobs/platforms/*.toml, checked, and changed as the user asks.

A description is one level of tables, written here with dots: node.gpus, nccl.base_us.ring. `based_on` names a
platform whose values hold where the file has none.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from shardbench.errors import UsageError, did_you_mean

SHIPPED = Path(__file__).resolve().parents[2] / "jobs/platforms"
"""Beside the package in a checkout."""


class PlatformError(UsageError):
    """A description that cannot be used: problem, reason, what to do, in one line."""


@dataclass(frozen=True)
class _Kind:
    wanted: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _three(values: Any) -> bool:
    return isinstance(values, list) and len(values) == 3 and all(_is_number(v) and v >= 0 for v in values)


_TEXT = _Kind("text", lambda value: isinstance(value, str) and bool(value))
_TOPOLOGY = _Kind('"fat-tree" or "flat"', lambda value: value in ("fat-tree", "flat"))
# Beyond these the simulator's clock would count nothing or infinity, and integers would be cut.
_COUNT = _Kind("an integer from 1 to 1000000", lambda value: type(value) is int and 1 <= value <= 1_000_000)
# GPUs of a node are linked pairwise.
_GPUS = _Kind("an integer from 1 to 1024", lambda value: type(value) is int and 1 <= value <= 1024)
_POSITIVE = _Kind("a number above 0", lambda value: _is_number(value) and value > 0)
_RATE = _Kind("a number from 1 to 1e21", lambda value: _is_number(value) and 1 <= value <= 1e21)
_DURATION = _Kind("a number from 0 to 1000", lambda value: _is_number(value) and 0 <= value <= 1000)
_SHARE = _Kind("a number above 0, at most 1", lambda value: _is_number(value) and 0 < value <= 1)
_PROTOCOLS = _Kind("three numbers from 0, for LL, LL128 and Simple", _three)
_BY_NODES = _Kind("three numbers from 0, for 1, 2 and more nodes", _three)

KEYS: Mapping[str, _Kind] = {
    "description": _TEXT,
    "node.gpus": _GPUS,
    "node.gpu_link_bandwidth": _RATE,
    "node.gpu_link_latency_s": _DURATION,
    "node.nic_bandwidth": _RATE,
    "node.nic_latency_s": _DURATION,
    "network.topology": _TOPOLOGY,
    "network.leaf_nodes": _COUNT,
    "network.oversubscription": _COUNT,
    "network.link_latency_s": _DURATION,
    "gpu.name": _TEXT,
    "gpu.peak_flops": _RATE,
    "gpu.efficiency": _SHARE,
    "gpu.memory_bandwidth": _RATE,
    "gpu.launch_s": _DURATION,
    "nccl.version": _TEXT,
    "nccl.channels": _COUNT,
    "nccl.base_us.ring": _PROTOCOLS,
    "nccl.base_us.tree": _PROTOCOLS,
    "nccl.base_us.pat": _DURATION,
    "nccl.gpu_link_hop_us.ring": _PROTOCOLS,
    "nccl.gpu_link_hop_us.tree": _PROTOCOLS,
    "nccl.network_hop_us.ring": _PROTOCOLS,
    "nccl.network_hop_us.tree": _PROTOCOLS,
    "nccl.ll_max_bandwidth": _BY_NODES,
    "nccl.ll_multi_node_hop_factor": _POSITIVE,
    "nccl.ll128_fraction": _SHARE,
    "nccl.ll128_channel_bandwidth": _RATE,
    "nccl.tree_fraction": _SHARE,
    "nccl.pat_log_divisor": _POSITIVE,
    "nccl.pat_rank_us": _DURATION,
    "nccl.pat_fraction": _SHARE,
    "nccl.gpu_link_efficiency": _SHARE,
    "nccl.network_efficiency": _SHARE,
}
"""Every key of a description, and what it holds. Bandwidths are bytes/s and direction."""


@dataclass(frozen=True)
class Platform:
    """A machine. `values` holds every one of `KEYS`; `changed` those that the user has set."""

    name: str
    values: Mapping[str, Any]
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gpus_per_node(self) -> int:
        return int(self.values["node.gpus"])

    def hosts(self, ranks: int) -> Iterable[str]:
        """Of each rank: ranks fill one node after the other."""
        return (f"node{r // self.gpus_per_node}-gpu{r % self.gpus_per_node}" for r in range(ranks))

    def nodes(self, ranks: int) -> int:
        return ceil(ranks / self.gpus_per_node)

    def file_text(self) -> str:
        """A file of this platform, as `load_platform` reads it."""
        return "".join(f"{key} = {toml(value)}\n" for key, value in self.values.items())

    def description(self, ranks: int) -> dict[str, Any]:
        """Nested as in the file, with all that a simulation of so many ranks must know."""
        nested: dict[str, Any] = {"name": self.name, "ranks": ranks, "changed": dict(self.changed)}
        for key, value in self.values.items():
            *tables, last = key.split(".")
            table = nested
            for name in tables:
                table = table.setdefault(name, {})
            table[last] = value
        return nested


def toml(value: Any) -> str:
    """A number, a text or a list of these. JSON's form of them is TOML, but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def described(description: Mapping[str, Any]) -> Platform:
    """The machine of a trace: the reverse of `Platform.description`."""
    figures = {name: value for name, value in description.items() if name not in ("name", "ranks", "changed")}
    return Platform(
        str(description.get("name")), dict(_flattened(figures)), dict(description.get("changed", {}))
    )


def load_platform(name_or_file: str, changes: Iterable[str] = ()) -> Platform:
    """A shipped platform or a file of the same form, with `changes` such as 'node.nic_bandwidth=25e9'.

    Raises:
        PlatformError: there is no such platform, or a key or a value is wrong.
    """
    path = _find(name_or_file)
    platform = Platform(path.stem, _values(path))
    changed = dict(_parse_change(change) for change in changes)
    platform = replace(platform, values={**platform.values, **changed}, changed=changed)
    _check(platform)
    return platform


def shipped_names() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def _find(name_or_file: str, beside: Path = Path()) -> Path:
    path = beside / name_or_file
    if path.suffix == ".toml" and path.is_file():
        return path
    if name_or_file in shipped_names():
        return SHIPPED / f"{name_or_file}.toml"
    choice = ", ".join(shipped_names()) or f"(none in {SHIPPED})"
    raise PlatformError(
        f"there is no platform '{name_or_file}'{did_you_mean(name_or_file, shipped_names())}; "
        f"choose one of {choice}, or pass a file NAME.toml of the same form"
    )


def _values(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PlatformError(
            f"{path} cannot be read ({reason}); compare it with {SHIPPED}/flat.toml"
        ) from error
    base = content.pop("based_on", None)
    own = dict(_flattened(content))
    for key in own:
        if key not in KEYS:
            raise PlatformError(f"{path} has a key '{key}' that no platform has{did_you_mean(key, KEYS)}")
    if base is None:
        return own
    base_path = _find(str(base), path.parent)
    if base_path.resolve() in (known.resolve() for known in (path, *above)):
        raise PlatformError(f"{path} is based on itself; remove one based_on")
    return {**_values(base_path, (path, *above)), **own}


def _flattened(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _parse_change(change: str) -> tuple[str, Any]:
    key, equals, text = change.partition("=")
    if not equals:
        raise PlatformError(f"--set {change} says no value; write KEY=VALUE, as in node.nic_bandwidth=25e9")
    if key not in KEYS:
        suggestion = did_you_mean(key, KEYS) or f"; the keys are {', '.join(KEYS)}"
        raise PlatformError(f"--set {change}: platforms have no key '{key}'{suggestion}")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key, text  # names need no quotes; what should be a number is refused by its kind


def _check(platform: Platform) -> None:
    for key, kind in KEYS.items():
        if key not in platform.values:
            raise PlatformError(f"platform {platform.name} lacks the key '{key}'; give it {kind.wanted}")
        if not kind.holds(value := platform.values[key]):
            raise PlatformError(f"platform {platform.name}: {key} is {value!r}; it must be {kind.wanted}")
    leaf_nodes, oversubscription = (
        platform.values[f"network.{k}"] for k in ("leaf_nodes", "oversubscription")
    )
    if leaf_nodes % oversubscription:
        raise PlatformError(
            f"platform {platform.name}: network.leaf_nodes = {leaf_nodes} is not a multiple of "
            f"network.oversubscription = {oversubscription}, so a leaf switch would have a part of a link; change one"
        )
