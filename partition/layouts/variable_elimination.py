"""The cheapest choice of one option for each of many variables, where costs are of single variables and of pairs.

Variable elimination (min-sum; Dechter, "Bucket elimination", 1999, section 4), exact while the tables stay small; where
they would not, the variables that couple most are held at a good choice, and improved one by one afterwards.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Pairs = Mapping[tuple[int, int], Floats]  # (i, j) with i < j -> costs [options of i, options of j]

TABLE_MAX = 300_000  # entries of one table
SWEEPS = 12
ROUNDS = 4


@dataclass(frozen=True)
class _Step:
    """An eliminated variable: its table, with its own axis first, over `others`."""

    variable: int
    others: tuple[int, ...]
    table: Floats


def cheapest(single: Sequence[Floats], pairs: Pairs) -> list[int]:
    """One option a variable, so that the sum of all costs is least (or nearly so, see above).

    single: costs of the options of each variable.
    """
    near: dict[int, list[int]] = defaultdict(list)
    for i, j in pairs:
        near[i].append(j)
        near[j].append(i)
    best = _improved(single, pairs, near, [int(costs.argmin()) for costs in single])
    least = _total(single, pairs, best)
    for _ in range(ROUNDS):
        found, exact = _eliminated(single, pairs, best)
        found = _improved(single, pairs, near, found)
        cost = _total(single, pairs, found)
        if cost >= least * (1 - 1e-12):
            break
        best, least = found, cost
        if exact:
            break
    return best


def _total(single: Sequence[Floats], pairs: Pairs, chosen: Sequence[int]) -> float:
    alone = sum(float(costs[at]) for costs, at in zip(single, chosen, strict=True))
    return alone + sum(float(costs[chosen[i], chosen[j]]) for (i, j), costs in pairs.items())


def _improved(single: Sequence[Floats], pairs: Pairs, near: Mapping[int, list[int]], start: list[int]) -> list[int]:
    """One variable after the other takes its best option, until none changes."""
    chosen = list(start)
    for _ in range(SWEEPS):
        changed = False
        for i, costs in enumerate(single):
            total = costs.copy()
            for j in near.get(i, ()):
                total += pairs[i, j][:, chosen[j]] if i < j else pairs[j, i][chosen[j]]
            best = int(total.argmin())
            if total[best] < total[chosen[i]]:
                chosen[i], changed = best, True
        if not changed:
            break
    return chosen


def _eliminated(single: Sequence[Floats], pairs: Pairs, guess: Sequence[int]) -> tuple[list[int], bool]:
    """The exact optimum given the variables that had to be held at `guess`; whether none had to be."""
    factors: dict[int, list[tuple[tuple[int, ...], Floats]]] = {i: [((i,), costs)] for i, costs in enumerate(single)}
    for (i, j), costs in pairs.items():
        factors[i].append(((i, j), costs))
        factors[j].append(((i, j), costs))
    chosen, steps, left = list(guess), list[_Step](), set(range(len(single)))
    held = False
    others = {i: _others(i, factors[i]) for i in left}
    while left:
        sizes = {i: _entries(i, others[i], single) for i in left}
        variable = min(left, key=lambda i: (sizes[i], i))
        if sizes[variable] > TABLE_MAX:
            held = True
            variable = max(left, key=lambda i: (len(others[i]), -i))
            changed = _held(variable, chosen[variable], factors)
        else:
            step = _joined(variable, others[variable], factors[variable])
            steps.append(step)
            changed = _replaced(step, factors)
        left.discard(variable)
        for i in changed & left:
            others[i] = _others(i, factors[i])
    for step in reversed(steps):
        index: tuple[slice | int, ...] = (slice(None), *(chosen[i] for i in step.others))
        chosen[step.variable] = int(step.table[index].argmin())
    return chosen, not held


def _others(variable: int, factors: Sequence[tuple[tuple[int, ...], Floats]]) -> tuple[int, ...]:
    return tuple(sorted({i for scope, _ in factors for i in scope} - {variable}))


def _entries(variable: int, others: Sequence[int], single: Sequence[Floats]) -> float:
    entries = float(len(single[variable]))
    for i in others:
        entries *= len(single[i])
    return entries if len(others) < 30 else float("inf")  # numpy has so many dimensions, and no more


def _joined(variable: int, others: tuple[int, ...], factors: Sequence[tuple[tuple[int, ...], Floats]]) -> _Step:
    """The sum of all factors of a variable, as one table."""
    scope = (variable, *others)
    table: Floats = np.zeros((1,) * len(scope))
    for members, costs in factors:
        order = sorted(range(len(members)), key=lambda at: scope.index(members[at]))
        moved = costs.transpose(order)
        shape = [1] * len(scope)
        for axis, at in enumerate(order):
            shape[scope.index(members[at])] = moved.shape[axis]
        table = table + moved.reshape(shape)
    return _Step(variable, others, table)


def _replaced(step: _Step, factors: dict[int, list[tuple[tuple[int, ...], Floats]]]) -> set[int]:
    """Put the minimum over a variable in the place of all its factors; the variables concerned."""
    for i in step.others:
        factors[i] = [factor for factor in factors[i] if step.variable not in factor[0]]
    if step.others:
        least = (step.others, np.asarray(step.table.min(axis=0)))
        for i in step.others:
            factors[i].append(least)
    factors[step.variable] = []
    return set(step.others)


def _held(variable: int, option: int, factors: dict[int, list[tuple[tuple[int, ...], Floats]]]) -> set[int]:
    """Fix a variable: each of its factors loses that axis."""
    changed: set[int] = set()
    for scope, costs in factors[variable]:
        at = scope.index(variable)
        rest = scope[:at] + scope[at + 1 :]
        left = (rest, np.asarray(costs.take(option, axis=at)))
        for i in rest:
            factors[i] = [*(factor for factor in factors[i] if factor[0] != scope or factor[1] is not costs), left]
        changed |= set(rest)
    factors[variable] = []
    return changed
