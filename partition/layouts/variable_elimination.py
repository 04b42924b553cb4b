"""Minimises a sum of costs of single variables and of pairs, choosing one option for each variable.

Variable elimination (min-sum; Dechter, "Bucket elimination", Artificial Intelligence 1999, section 4):

1. Take the variable whose table with its neighbours is smallest, and add up all factors that it is in.
2. Minimise over it: the result is a factor of its neighbours. Repeat until no variable is left.
3. Go back: each variable takes the option that is best for the choices of those eliminated after it.

This is exact while the tables stay small. Where one would exceed MAX_TABLE_ENTRIES, the variable with most neighbours
is conditioned on: it keeps its current option, and coordinate descent improves it afterwards (cutset conditioning,
ibid., section 8).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Pairs = Mapping[tuple[int, int], Floats]  # (i, j) with i < j -> costs [options of i, options of j]

MAX_TABLE_ENTRIES = 300_000  # entries of one table
SWEEPS = 12
ROUNDS = 4


@dataclass(frozen=True)
class _Elimination:
    """An eliminated variable: its table, with its own axis first, over its neighbours `others`."""

    variable: int
    others: tuple[int, ...]
    table: Floats


def minimise(single: Sequence[Floats], pairs: Pairs) -> list[int]:
    """Choose one option for each variable that minimises the sum of all costs, nearly so where tables are too large.

    single: costs of the options of each variable. pairs: costs of the options of two variables.
    """
    near: dict[int, list[int]] = defaultdict(list)
    for i, j in pairs:
        near[i].append(j)
        near[j].append(i)
    best = _improve_coordinates(single, pairs, near, [int(costs.argmin()) for costs in single])
    best_cost = _total_cost(single, pairs, best)
    for _ in range(ROUNDS):
        options, exact = _eliminate(single, pairs, best)
        options = _improve_coordinates(single, pairs, near, options)
        cost = _total_cost(single, pairs, options)
        if cost >= best_cost * (1 - 1e-12):
            break
        best, best_cost = options, cost
        if exact:
            break
    return best


def _total_cost(single: Sequence[Floats], pairs: Pairs, chosen: Sequence[int]) -> float:
    alone = sum(float(costs[at]) for costs, at in zip(single, chosen, strict=True))
    return alone + sum(float(costs[chosen[i], chosen[j]]) for (i, j), costs in pairs.items())


def _improve_coordinates(
    single: Sequence[Floats], pairs: Pairs, near: Mapping[int, list[int]], start: list[int]
) -> list[int]:
    """Coordinate descent: each variable in turn takes its best option, until none changes."""
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


def _eliminate(single: Sequence[Floats], pairs: Pairs, guess: Sequence[int]) -> tuple[list[int], bool]:
    """The optimum given the variables that were conditioned on `guess`, and whether there was none of these."""
    factors: dict[int, list[tuple[tuple[int, ...], Floats]]] = {i: [((i,), costs)] for i, costs in enumerate(single)}
    for (i, j), costs in pairs.items():
        factors[i].append(((i, j), costs))
        factors[j].append(((i, j), costs))
    chosen, steps, left = list(guess), list[_Elimination](), set(range(len(single)))
    exact = True
    others = {i: _neighbours(i, factors[i]) for i in left}
    sizes = {i: _table_entries(i, others[i], single) for i in left}
    while left:
        variable = min(left, key=lambda i: (sizes[i], i))
        if sizes[variable] > MAX_TABLE_ENTRIES:
            exact = False
            variable = max(left, key=lambda i: (len(others[i]), -i))
            changed = _condition(variable, chosen[variable], factors)
        else:
            step = _sum_factors(variable, others[variable], factors[variable])
            steps.append(step)
            changed = _replace_factors(step, factors)
        left.discard(variable)
        for i in changed & left:
            others[i] = _neighbours(i, factors[i])
            sizes[i] = _table_entries(i, others[i], single)
    for step in reversed(steps):
        index: tuple[slice | int, ...] = (slice(None), *(chosen[i] for i in step.others))
        chosen[step.variable] = int(step.table[index].argmin())
    return chosen, exact


def _neighbours(variable: int, factors: Sequence[tuple[tuple[int, ...], Floats]]) -> tuple[int, ...]:
    return tuple(sorted({i for scope, _ in factors for i in scope} - {variable}))


def _table_entries(variable: int, others: Sequence[int], single: Sequence[Floats]) -> float:
    entries = float(len(single[variable]))
    for i in others:
        entries *= len(single[i])
    return entries if len(others) < 30 else float("inf")  # numpy has so many dimensions, and no more


def _sum_factors(
    variable: int, others: tuple[int, ...], factors: Sequence[tuple[tuple[int, ...], Floats]]
) -> _Elimination:
    """The sum of all factors of a variable, as one table (step 1)."""
    scope = (variable, *others)
    table: Floats = np.zeros((1,) * len(scope))
    for members, costs in factors:
        order = sorted(range(len(members)), key=lambda at: scope.index(members[at]))
        moved = costs.transpose(order)
        shape = [1] * len(scope)
        for axis, at in enumerate(order):
            shape[scope.index(members[at])] = moved.shape[axis]
        table = table + moved.reshape(shape)
    return _Elimination(variable, others, table)


def _replace_factors(step: _Elimination, factors: dict[int, list[tuple[tuple[int, ...], Floats]]]) -> set[int]:
    """Replace all factors of a variable by their minimum over it (step 2); returns its neighbours."""
    for i in step.others:
        factors[i] = [factor for factor in factors[i] if step.variable not in factor[0]]
    if step.others:
        minimum = (step.others, np.asarray(step.table.min(axis=0)))
        for i in step.others:
            factors[i].append(minimum)
    factors[step.variable] = []
    return set(step.others)


def _condition(variable: int, option: int, factors: dict[int, list[tuple[tuple[int, ...], Floats]]]) -> set[int]:
    """Fix a variable at an option: each of its factors loses that axis. Returns its neighbours."""
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
