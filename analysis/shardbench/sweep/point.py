"""One configuration of a study, the runs of it, and the names of their files."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardbench.plans import BENCHMARK

Value = bool | int | float | str

MODEL_DIMENSIONS = ("layers", "hidden", "heads", "kv-heads", "ffn", "vocab", "seq")

NOT_IN_NAME = {
    # the model's shape: a name with all these numbers is not readable
    *(dimension for dimension in MODEL_DIMENSIONS if dimension != "seq"),
    *("tied", "untied"),
    # how long to measure and what to keep, not what a step does
    *("steps", "warmup", "window", "check", "trace", "stall-timeout", "threads"),
    *("iters", "warmup_iters"),
}
"""Options that only the hash in a file's name tells apart."""

LONGEST_OPTIONS = 60
"""Characters of a name that options may take; file names end at 255."""


@dataclass(frozen=True)
class Machine:
    """What a simulated point runs on: a platform's name or file, the keys of it that are overridden, and
    the figures that result."""

    platform: str
    overrides: Mapping[str, Value]
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """A configuration. `machine` is None where real ranks run it, `model` where nothing is trained."""

    scenario: str
    ranks: int
    model: str | None
    options: Mapping[str, Value]
    machine: Machine | None

    @property
    def is_benchmark(self) -> bool:
        """Whether it measures collectives alone, without a step."""
        return self.scenario == BENCHMARK

    @cached_property
    def hash(self) -> str:
        """Eight hex digits that change with anything that the study says about this configuration, and with
        the figures of the machine that is simulated."""
        configuration = {
            "scenario": self.scenario,
            "ranks": self.ranks,
            "model": self.model,
            "options": dict(self.options),
            "machine": self.machine and dict(self.machine.figures),
        }
        text = json.dumps(configuration, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @cached_property
    def name(self) -> str:
        """Readable, and the same wherever the point stands in whichever study."""
        words = [self.scenario, *([_plain(self.model)] if self.model else []), *_readable(self.options)]
        if self.machine:
            words += [_plain(Path(self.machine.platform).stem), *_readable(self.machine.overrides)]
        return "_".join([*words, f"n{self.ranks}", self.hash])

    def arguments(self) -> list[str]:
        """The executable's, without world size and output. Always `--name=value`, so that no value is
        taken for an option."""
        named: dict[str, Value] = {**({"model": self.model} if self.model else {}), **self.options}
        return [
            f"--{name}" if value is True else f"--{name}={text_of(value)}" for name, value in named.items()
        ]


@dataclass(frozen=True)
class Run:
    """One launch of a point."""

    point: Point
    repetition: int
    launcher: str

    @property
    def name(self) -> str:
        """The stem of its files; repetitions count from 1."""
        return f"{self.point.name}_r{self.repetition}"

    def trace(self, output: Path) -> Path:
        """The HDF5 file that it writes."""
        return output / f"{self.name}.h5"

    def log(self, output: Path) -> Path:
        """What its launcher printed, and how it ended."""
        return output / f"{self.name}.log"


def points_of(runs: Iterable[Run]) -> tuple[Point, ...]:
    """Each point once, in order of first appearance."""
    return tuple({run.point.hash: run.point for run in runs}.values())


def text_of(value: Value) -> str:
    """As executables read it; numbers as short as they are exact."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def _readable(options: Mapping[str, Value]) -> list[str]:
    words = [
        _plain(name if value is True else f"{name}{text_of(value)}")
        for name, value in sorted(options.items())
        if name not in NOT_IN_NAME
    ]
    while sum(map(len, words)) > LONGEST_OPTIONS:
        words.pop()
    return words


def _plain(text: str) -> str:
    """Nothing that a shell, a file system or a reader could misunderstand."""
    return re.sub(r"[^A-Za-z0-9.,+-]+", "-", text)
