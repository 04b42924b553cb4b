"""The optimizer of a run whose parameters are in groups, or whose weights are averaged: which lies where.

Groups are settled by names before anything is captured, since frozen parameters are no trained ones; where those of
each group lie in the flat buffers is known once the model is laid out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from ...errors import UsageError
from ...ps.optimizers.parameter_groups import Averaged, Grouped
from ...ps.optimizers.rates import RatedOptimizer
from ...ps.optimizers.registry import AnyOptimizer
from ...ps.slices.region import Region
from ..task.meta_model import build_without_weights
from .parameter_group import Group, assign_groups

if TYPE_CHECKING:
    from ...models.task import Task
    from ...ps.methods.registry import AnyMethod


def find_frozen(groups: Sequence[Group], task: "Task") -> tuple[str, ...]:
    """Return the names of the parameters that the groups freeze.

    UsageError where a group matches nothing, or no parameter is left to train.
    """
    if not groups:
        return ()
    model = build_without_weights(task)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    numbers = assign_groups(groups, shapes, list_ties(model))
    frozen = tuple(name for name, number in numbers.items() if number < len(groups) and groups[number].frozen)
    if frozen and not any(p.requires_grad for name, p in model.named_parameters() if name not in frozen):
        which = " and ".join(str(group) for group in groups if group.frozen)
        facts = f"--group {which} freezes {len(frozen)} parameters of the model, and nothing is left to train"
        raise UsageError("E237", facts, fix="freeze fewer")
    return frozen


def list_ties(model: nn.Module) -> dict[str, str]:
    """Return, by each name that a parameter has, the first one."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: first[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}


def arrange_groups(
    base: RatedOptimizer,
    groups: Sequence[Group],
    ema: float | None,
    machines: Iterable[Sequence[Region]],
    ties: Mapping[str, str],
) -> AnyOptimizer:
    """Return the optimizer of flat buffers, in which trained parameters lie in these regions, machine by machine.

    base: of all that is in no group. ema: the decay of the average that is kept, None for none. ties: see `list_ties`.
    """
    trained, optimizer = [group for group in groups if not group.frozen], base
    if not trained:
        return base if ema is None else Averaged(base, ema)
    names = defaultdict[str, list[str]](list)
    for name, first in ties.items():
        names[first].append(name)
    numbers = {id(group): number for number, group in enumerate(trained)}
    ranges = []
    for regions in machines:
        parts = list[tuple[int, int]]()
        for region in sorted(regions, key=lambda one: one.offset):
            known = {region.name, *names[region.name]}
            group = next((one for one in groups if one.matches(known, len(region.shape))), None)
            number = len(trained) if group is None else numbers[id(group)]
            if parts and parts[-1][1] == number:
                parts.pop()
            parts.append((region.stop, number))
        ranges.append(parts)
    grouped = Grouped([*(group.change(optimizer) for group in trained), base], ranges)
    return grouped if ema is None else Averaged(grouped, ema)


def demand_average(optimizer: AnyOptimizer, method: "AnyMethod", replicas: int) -> None:
    """Raise UsageError where weights shall be averaged, and the shards do not make the updates that are averaged."""
    if isinstance(optimizer, Averaged) and method.configure_shards(optimizer, replicas).optimizer != optimizer:
        facts = f"--ema with method {method.name}, whose replicas make the updates, each by itself"
        raise UsageError("E238", facts, fix="leave --ema out, or --method downpour")


def count_groups(optimizer: AnyOptimizer, groups: Sequence[Group], frozen: int) -> list[str]:
    """Return a remark on how many elements each group has, over all machines."""
    grouped = optimizer.inner if isinstance(optimizer, Averaged) else optimizer
    if not groups:
        return []
    counts = defaultdict[int, int](int)
    for parts in grouped.ranges if isinstance(grouped, Grouped) else []:
        begin = 0
        for end, number in parts:
            counts[number] += end - begin
            begin = end
    trained = [group for group in groups if not group.frozen]
    phrases = [f"{counts[number]:,} elements by {group}" for number, group in enumerate(trained)]
    phrases += [f"{counts[len(trained)]:,} by the rest"] if trained else []
    phrases += [f"{frozen} parameters frozen"] if frozen else []
    return ["parameter groups: " + ", ".join(phrases)]
