"""What sets one series of runs apart from another, and how it is called."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from shardbench.read import Attributes, Config

BESIDE_THE_STEP = ("trace", "check")
"""Options that set what is recorded and verified: the step is the same, though its time may feel them."""

NOT_CONFIGURATION = {
    # what N is, or follows from it
    *("ranks", "dp", "threads", "ranks-per-node"),
    # how long to measure and where to store it, not what a step does
    *("steps", "warmup", "window", "output", "overwrite"),
    *BESIDE_THE_STEP,
    # when to give up
    "stall-timeout",
}
"""Options that do not set a series apart from another."""

Depth = tuple[int, int]
"""Groups gathered ahead of the one in use, in forward and in backward."""


def depth_text(depth: Depth) -> str:
    """As it is passed: one number where both directions have the same."""
    forward, backward = depth
    return str(forward) if forward == backward else f"{forward},{backward}"


def prefetch_depth(option: Any) -> Depth | None:
    """The option `prefetch` as groups ahead in forward and backward; None where a scenario has none."""
    parts = str(option).split(",")
    if not all(part.isdecimal() for part in parts):
        return None
    return int(parts[0]), int(parts[-1])


def is_strong(config: Config) -> bool:
    """Whether the global batch is fixed, so that N divides the work."""
    return config.options.get("global-batch") not in (None, 0, "", "unset")


def platform(config: Config) -> str | None:
    """The simulated machine; None for real runs and unnamed machines."""
    name = (config.simulation or {}).get("platform")
    return None if name is None else str(name)


def origin(attributes: Attributes, config: Config) -> str:
    """'measured', or 'simulated' with the machine where it has a name."""
    if not attributes.simulated:
        return "measured"
    name = platform(config)
    return f"simulated on {name}" if name else "simulated"


def setup(attributes: Attributes, config: Config) -> dict[str, Any]:
    """Everything but scenario, model and N that sets one series apart from another."""
    excluded = NOT_CONFIGURATION | {"model"} | ({"grad-accum"} if is_strong(config) else set())
    options = {name: value for name, value in config.options.items() if name not in excluded}
    changed = (config.simulation or {}).get("changed") or {}  # by --set
    machine = {"platform": platform(config), **changed}
    return {"backend": attributes.backend, "tp": attributes.tp} | machine | options


def labels(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """How each scenario and setup is called: by that in which it differs from the others of its scenario."""
    of_scenario: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for scenario, own in runs:
        of_scenario[scenario].append(own)
    varying = {scenario: _varying(setups) for scenario, setups in of_scenario.items()}
    differing = [{name: own[name] for name in varying[scenario] if name in own} for scenario, own in runs]
    scenarios = [scenario for scenario, _ in runs]
    short = [_label(scenario, _shown(options)) for scenario, options in zip(scenarios, differing)]
    # What is not set need not be said, unless nothing else tells two series apart.
    is_ambiguous = {label: count > 1 for label, count in Counter(short).items()}
    return [
        _label(scenario, [f"{name} {json.dumps(value)}" for name, value in options.items()])
        if is_ambiguous[label]
        else label
        for scenario, options, label in zip(scenarios, differing, short)
    ]


def _label(scenario: str, options: Sequence[str]) -> str:
    return f"{scenario} ({', '.join(options)})" if options else scenario


def _varying(setups: Sequence[Mapping[str, Any]]) -> list[str]:
    """The options that are not the same in all setups, in the order of names."""
    first = setups[0]
    names = sorted({name for own in setups for name in own})
    return [name for name in names if any(own.get(name) != first.get(name) for own in setups)]


def _shown(options: Mapping[str, Any]) -> list[str]:
    """Options as they are passed: switches by name, an object's parts as `name=value`."""
    shown = []
    for option, value in options.items():
        if option == "prefetch" and (depth := prefetch_depth(value)):
            value = depth_text(depth)
        if isinstance(value, Mapping):
            value = ",".join(f"{name}={part}" for name, part in value.items())
        if value is True:
            shown.append(option)
        elif value is not None and value is not False and value != "":
            shown.append(f"{option} {value}")
    return shown
