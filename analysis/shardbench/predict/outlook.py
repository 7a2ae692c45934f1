"""What is to be expected of each configuration of a directory, from small N to large."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from shardbench.ends import EXPOSED_LIMIT
from shardbench.errors import RunError, UsageError
from shardbench.plans import NoSchedule
from shardbench.predict.alphabeta import Fit, Kind
from shardbench.predict.model import (
    Configuration,
    Measured,
    Model,
    Place,
    Prediction,
    Skill,
    build,
    configurations,
    fit_places,
    skill,
    with_residual,
)


@dataclass(frozen=True)
class Outlook:
    """Of one configuration. `exposed_from`: the N from which its exposed share is above `ends.EXPOSED_LIMIT`, or None."""

    configuration: Configuration
    predictions: tuple[Prediction, ...]
    skill: Skill | None
    exposed_from: int | None

    def measured_s(self, ranks: int) -> float | None:
        """The step time that a file has at this N."""
        file = self.configuration.measured.get(ranks)
        return file.step_s if file else None


Supplement = Callable[[Sequence[Configuration]], Sequence[Measured]]
"""For configurations whose prediction is in doubt: further measurements on their machines, of which there may be none."""


def outlooks_of(
    files: Sequence[Measured],
    largest: int,
    binaries: Path,
    per_node: int | None = None,
    supplement: Supplement = lambda _: (),
) -> tuple[list[Outlook], list[str]]:
    """The outlooks, and a line for each reason why configurations have none. `per_node`: ranks of a node, where files do not tell.

    An N that the executable refuses, as a batch that does not divide, is missing from an outlook, with such a line. What
    `supplement` adds is fitted like what is in the files.

    Raises:
        UsageError: no file is a scenario's, or `largest` is less than every N that was measured.
    """
    if not any(file.trains for file in files):
        raise UsageError(
            "no file is a scenario's, so there is no step to predict; add runs with --trace events"
        )
    outlooks: list[Outlook] = []
    refused: dict[str, list[str]] = defaultdict(list)

    def refuse(what: str, reason: str) -> None:
        refused[reason].append(what)

    known, fits = list(files), fit_places(files)

    @cache
    def fits_below(place: Place, ranks: int) -> Mapping[Kind, Fit]:
        return fit_places([file for file in known if file.place == place and file.ranks < ranks]).get(
            place, {}
        )

    def model_of(configuration: Configuration) -> Model:
        model = build(configuration, fits[configuration.place], binaries)
        return replace(model, per_node=per_node or model.per_node)

    found = configurations(files, binaries, refuse)
    smallest = min((min(configuration.measured) for configuration in found), default=largest)
    if largest < smallest:
        raise UsageError(f"N = {largest} is less than N = {smallest}, which was measured; pass a larger one")
    if more := supplement([each for each in found if _is_doubtful(each, model_of, largest)]):
        known += more
        fits = fit_places(known)
    for configuration in found:
        try:
            outlooks.append(_outlook(configuration, fits_below, model_of(configuration), largest, refuse))
        except (RunError, UsageError) as error:
            refuse(configuration.label, str(error))
    return outlooks, [f"{'; '.join(labels)}: {reason}" for reason, labels in refused.items()]


def _is_doubtful(
    configuration: Configuration, model_of: Callable[[Configuration], Model], largest: int
) -> bool:
    """At any N that is to be predicted."""
    try:
        model = model_of(configuration)
        for ranks in sizes_to(min(configuration.measured), largest)[::-1]:
            with suppress(NoSchedule):
                if model.is_doubtful(ranks):
                    return True
    except (RunError, UsageError):  # is told where the outlook is made
        pass
    return False


def _outlook(
    configuration: Configuration,
    fits_below: Callable[[Place, int], Mapping[Kind, Fit]],
    model: Model,
    largest: int,
    refuse: Callable[[str, str], None],
) -> Outlook:
    model = with_residual(model, configuration)
    predictions = []
    for ranks in sizes_to(min(configuration.measured), largest):
        try:
            predictions.append(model.predict(ranks))
        except NoSchedule as error:
            refuse(f"{configuration.label} at N = {ranks}", str(error))
    if not predictions:
        raise RunError(f"the executable plans none of the N up to {largest}")
    return Outlook(
        configuration,
        tuple(predictions),
        skill(configuration, fits_below, model),
        exposed_from(model, predictions),
    )


def sizes_to(smallest: int, largest: int) -> list[int]:
    """Each doubling of `smallest` below `largest`, and that.

    Raises:
        RunError: it is smaller.
    """
    if largest < smallest:
        raise RunError(
            f"measured from N = {smallest} on, which is more than the {largest} that predictions are to reach"
        )
    sizes = [smallest]
    while sizes[-1] * 2 < largest:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == largest else [*sizes, largest]


def exposed_from(model: Model, predictions: Sequence[Prediction]) -> int | None:
    """The smallest N, in whole nodes, from which the exposed share is above the limit.

    Found by bisection between two predictions of ascending N, in between which the share is taken as monotone. An N that the
    executable refuses is passed over.
    """
    exposed = [p.exposed_share > EXPOSED_LIMIT for p in predictions]
    if not exposed[-1]:
        return None
    first = len(exposed) - exposed[::-1].index(False) if False in exposed else 0
    above = predictions[first].ranks
    if first == 0:
        return above
    below = predictions[first - 1].ranks
    step = next(
        s
        for s in (model.per_node, model.setup.tp, 1)
        if above % s == 0 and below % s == 0 and s % model.setup.tp == 0
    )
    end = above
    while end - below > step:
        middle = below + (end - below) // (2 * step) * step
        tried = next(filter(None, (_planned(model, ranks) for ranks in range(middle, end, step))), None)
        if tried is None:
            end = middle
        elif tried.exposed_share > EXPOSED_LIMIT:
            above = end = tried.ranks
        else:
            below = tried.ranks
    return above


def _planned(model: Model, ranks: int) -> Prediction | None:
    try:
        return model.predict(ranks)
    except NoSchedule:
        return None
