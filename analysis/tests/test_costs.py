"""What local operations cost at another N."""

import pytest

from shardbench.predict.costs import Observation, local_costs
from shardbench.predict.schedule import Local

BLOCK = Local("compute", "forward", "block", -1, 0)
COPY = Local("copy_in", "forward", "block", -1, 0)
UPDATE = Local("compute", "optimizer", "none", -1, 1)


def observation(dp: int, **seconds: float) -> Observation:
    keys = {"block": BLOCK, "copy": COPY, "update": UPDATE}
    values = {keys[name]: value for name, value in seconds.items()}
    return Observation(dp, values, dict.fromkeys(values, 0.0), 1e-6)


def test_compute_of_layers_does_not_depend_on_n() -> None:
    costs = local_costs([observation(2, block=3.0), observation(4, block=3.2), observation(8, block=2.9)])
    assert costs.costs[BLOCK].seconds(1024) == 3.0


@pytest.mark.parametrize(("whole", "shard"), [(0.0, 8.0), (2.0, 8.0), (2.0, 0.0)])
def test_whole_and_shard_are_told_apart_by_two_sizes(whole: float, shard: float) -> None:
    costs = local_costs([observation(n, copy=whole + shard / n, update=whole + shard / n) for n in (2, 8)])
    for key in (COPY, UPDATE):
        assert costs.costs[key].seconds(64) == pytest.approx(whole + shard / 64)


def test_neither_part_is_negative() -> None:
    costs = local_costs([observation(2, copy=1.0), observation(8, copy=1.1)])
    assert costs.costs[COPY].seconds(10**6) == pytest.approx(1.05)
    costs = local_costs([observation(2, copy=1.0), observation(8, copy=0.2)])
    assert costs.costs[COPY].seconds(10**6) == pytest.approx(0.0, abs=1e-5)
    assert costs.costs[COPY].seconds(10**6) >= 0.0


def test_with_one_size_a_cost_stays_what_it_is() -> None:
    assert local_costs([observation(4, update=0.5)]).costs[UPDATE].seconds(64) == 0.5


def test_files_that_disagree_make_the_cost_uncertain() -> None:
    same = local_costs([observation(2, block=3.0), observation(4, block=3.0)])
    apart = local_costs([observation(2, block=3.0), observation(4, block=4.0)])
    assert same.costs[BLOCK].spread == 0.0
    assert apart.costs[BLOCK].spread > 0.05
