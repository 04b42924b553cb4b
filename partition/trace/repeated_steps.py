"""Runs a step of a model several times without data, and finds out whether every time computes the same.

A trace has the first step alone. What a model remembers outside of its parameters and buffers - a counter, a tensor of
the last step, Python's random numbers - would be as it was then in all steps. A table that the first step leaves for
the others is no difference, since it is computed of constants.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from .python_state import Change, find_drawing_line, list_changes, list_tensors, read_attributes, read_generators
from .user_frames import CodeLine
from .value_numbers import ValueNumbers

MAX_STEPS = 16  # in which a counter may come to bear


@dataclass(frozen=True)
class Difference:
    """How steps differ. places: where, as far as it is known. changes: the attributes in which they leave something.

    draws: whether the reason is that numbers are drawn from the generators of Python or numpy.
    """

    places: Sequence[CodeLine]
    changes: Sequence[Change]
    draws: bool = False


@dataclass(frozen=True)
class RepeatedSteps:
    """What `count` steps have shown. difference: None if all compute the same.

    changes: attributes that every step changes, without an effect on what these steps compute.
    """

    difference: Difference | None
    changes: Sequence[Change]
    count: int


def repeat_step(
    run: Callable[[], Tensor | Sequence[Tensor]], model: nn.Module, states: Mapping[str, Tensor]
) -> RepeatedSteps:
    """Run a step twice, or up to MAX_STEPS times if each changes attributes of `model`.

    run: computes a step and returns its results. states: batch, parameters and buffers by name, fake tensors.
    """
    numbers, generators, initial = ValueNumbers(states), read_generators(), read_attributes(model)
    expected = _run_once(run, numbers)
    if read_generators() != generators:
        line = find_drawing_line(run)
        return RepeatedSteps(Difference([] if line is None else [line], (), draws=True), (), 1)
    changes: Sequence[Change] = ()
    for count in range(2, MAX_STEPS + 1):
        before = read_attributes(model)
        found = _run_once(run, numbers)
        after = read_attributes(model)
        changes = list_changes(before, after)
        if found != expected:
            causes = changes or [*list_changes(initial, after), *list_tensors(model, numbers.is_left_over)]
            return RepeatedSteps(Difference(numbers.find_differences(found), causes), changes, count)
        if not changes:
            break
    return RepeatedSteps(None, changes, count)


def _run_once(run: Callable[[], Tensor | Sequence[Tensor]], numbers: ValueNumbers) -> Sequence[str]:
    numbers.begin_step()
    with numbers:
        result = run()
    return numbers.end_step([result] if isinstance(result, Tensor) else result)
