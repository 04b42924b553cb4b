"""What methods reach with their defaults, as it is shown."""

from command_line import Cutset
from command_line import cutset as cutset

from cutset.ps.methods.registry import METHODS
from cutset.tools.bench.training.reached import ONE_PROCESS, REACHED, describe_reached


def test_each_method_is_listed_with_the_tasks_of_one_process() -> None:
    assert set(REACHED) == set(METHODS)
    lacking = {(name, task) for name, reached in REACHED.items() for task in ONE_PROCESS.keys() - reached.keys()}
    assert lacking <= {("sandblaster", "MNIST")}


def test_none_is_more_than_a_point_behind_one_process() -> None:
    behind = {(name, task): ONE_PROCESS[task] - reached for name in REACHED for task, reached in REACHED[name].items()}
    assert {place: points for place, points in behind.items() if points > 1} == {}


def test_the_command_shows_it(cutset: Cutset) -> None:
    said = cutset("methods").out
    assert all(f"reaches: {describe_reached(name)}" in said for name in METHODS)
