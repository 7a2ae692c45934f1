"""Small collectives for machines that are simulated: where no file shows them, they are simulated, too."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from shardbench.errors import RunError, UsageError
from shardbench.platforms import described, toml
from shardbench.predict.model import Configuration, Measured, Place
from shardbench.predict.rehearsals import Stage, rehearse, small_collectives
from shardbench.units import listed


def supplement(
    doubtful: Sequence[Configuration], sim_bin: Path | None, say: Callable[[str], None]
) -> list[Measured]:
    """Rehearsals for configurations of which predictions are in doubt, on the machines that their files describe.

    `say` is told what was simulated, and why where nothing could be.
    """
    by_place: dict[Place, list[Configuration]] = defaultdict(list)
    for configuration in doubtful:
        if configuration.place.machine:
            by_place[configuration.place].append(configuration)
    found: list[Measured] = []
    for place, members in by_place.items():
        try:
            done = _rehearsed(place, members, sim_bin)
        except (RunError, UsageError) as error:
            say(f"small collectives on {place.platform} could not be simulated: {error}")
            continue
        sizes = sorted({str(measured.ranks) for measured in done}, key=int)
        say(
            f"small collectives, which no file has, were simulated on {listed(sizes)} ranks of {place.platform}"
        )
        found += done
    return found


def _rehearsed(place: Place, members: Sequence[Configuration], sim_bin: Path | None) -> list[Measured]:
    per_node = members[0].files[0].per_node
    runs = [
        rehearsal
        for algorithm in sorted({configuration.algorithm for configuration in members})
        for rehearsal in small_collectives(
            (c.setup.tp for c in members if c.algorithm == algorithm), per_node, algorithm
        )
    ]
    platform = described(json.loads(place.machine))
    with tempfile.TemporaryDirectory(prefix="shardbench-machine-") as folder:
        file = Path(folder) / f"{platform.name}.toml"
        if file.parent != Path(folder):
            raise RunError(f"'{platform.name}' is no platform's name")
        file.write_text(platform.file_text(), encoding="utf-8")
        # Said once more, so that files name the same keys as changed.
        changes = (f"--set={key}={toml(value)}" for key, value in platform.changed.items())
        done = list(rehearse(runs, Stage((f"--platform={file}", *changes), sim_bin)).values())
    if any(measured.place != place for measured in done):
        raise RunError("another version simulated the files; simulate them again")
    return done
