"""Places operators that cannot be cut, and that do not wait for each other, on different machines.

So the experts of a mixture, each of which gets as many tokens as the data says, come to lie on machines of their own,
while what is around them is cut: expert parallelism (Lepikhin et al., "GShard", ICLR 2021, section 2.2), which nobody
has declared. Rows are dispatched to them and combined where the rows are (operators.routed_rows), if these are few.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..cluster.cost_model import CostModel
from ..cluster.machines import Cluster
from ..ir.graph import Graph, Op
from ..operators.routed_rows import COMBINE, DISPATCH

MIN_SHARE = 0.01  # of the seconds of a step that such operators must take together
UNEVEN = 1.05  # how much longer the busiest machine may take where neighbours are kept together


def spread_whole_operators(
    graph: Graph, cluster: Cluster, costs: CostModel, pins: Mapping[str, int], *, all_rows: bool = False
) -> dict[str, int]:
    """Return the machine of each whole operator that has others beside it, and of what reads of one machine alone.

    pins: machines of operators that have one already. all_rows: dispatches and combines go with their operators, so
    that whole tensors travel; else only where the rows of all on a machine are more. There is none where this is of no
    use.
    """
    (machine, *_) = cluster.machines
    seconds = {op.name: sum(costs.seconds(op, op.nest.box, machine)) for op in graph.ops}
    least = MIN_SHARE * sum(seconds.values())
    placed = dict(pins)
    speeds = [one.flops_per_s for one in cluster.machines]
    for beside in list_independent(graph, pins):
        if len(beside) > 1 and sum(seconds[op.name] for op in beside) >= least:
            chosen = _share_out([seconds[op.name] for op in beside], speeds)
            placed |= zip((op.name for op in beside), chosen, strict=True)
    if len(placed) == len(pins):
        return {}
    _place_routes(graph, placed, max_rows=0.0 if all_rows else 1.0)
    _place_sums(graph, placed)
    return {name: number for name, number in placed.items() if name not in pins}


def list_independent(graph: Graph, pins: Mapping[str, int]) -> list[list[Op]]:
    """Return the whole operators in groups, by the longest path to each: none of a group waits for another."""
    depth: dict[str, int] = {}
    found: dict[int, list[Op]] = defaultdict(list)
    for op in graph.ops:
        before = [depth[graph.producers[name]] for name in op.inputs if name in graph.producers]
        depth[op.name] = 1 + max(before, default=0)
        if not op.is_cuttable and op.name not in pins:
            found[depth[op.name]].append(op)
    return list(found.values())


def _share_out(seconds: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Return a machine for each of some operators: neighbours together, unless the longest first is more even."""
    together, evenly = _keep_together(seconds, speeds), _put_longest_first(seconds, speeds)
    return together if _busiest(together, seconds, speeds) <= UNEVEN * _busiest(evenly, seconds, speeds) else evenly


def _keep_together(seconds: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Lay the operators and the machines' shares side by side, and give each operator to where its middle is."""
    scale, chosen, machine = sum(speeds) / sum(seconds), list[int](), 0
    done, end = 0.0, speeds[0]
    for one in seconds:
        while (done + one / 2) * scale > end and machine + 1 < len(speeds):
            machine += 1
            end += speeds[machine]
        chosen.append(machine)
        done += one
    return chosen


def _put_longest_first(seconds: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Give each operator, the longest first, to the machine that is done with it first (Graham 1969)."""
    load, chosen = [0.0] * len(speeds), [0] * len(seconds)
    for i in sorted(range(len(seconds)), key=lambda i: -seconds[i]):
        chosen[i] = min(range(len(speeds)), key=lambda m: ((load[m] + seconds[i]) / speeds[m], m))
        load[chosen[i]] += seconds[i]
    return chosen


def _busiest(chosen: Sequence[int], seconds: Sequence[float], speeds: Sequence[float]) -> float:
    load = [0.0] * len(speeds)
    for machine, one in zip(chosen, seconds, strict=True):
        load[machine] += one / speeds[machine]
    return max(load)


def _place_routes(graph: Graph, placed: dict[str, int], *, max_rows: float) -> None:
    """Place dispatches and combines with their operators where the rows of all on a machine are too many.

    The whole tensor travels then, once, and what is made of it is added up before it travels. max_rows: as a multiple
    of all rows of a tensor.
    """
    readers = {name: op.name for op in graph.ops for name in op.inputs}
    groups: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for op in graph.ops:
        if op.target == DISPATCH and readers.get(op.outputs[0]) in placed:
            machine = placed[readers[op.outputs[0]]]
            groups[op.inputs[0], machine][op.name] = graph.tensors[op.outputs[0]].density
        elif op.target == COMBINE and graph.producers.get(op.inputs[0]) in placed:
            machine = placed[graph.producers[op.inputs[0]]]
            groups["", machine][op.name] = graph.tensors[op.inputs[0]].density
    for (_, machine), density in groups.items():
        if sum(density.values()) > max_rows:
            placed |= dict.fromkeys(density, machine)


def _place_sums(graph: Graph, placed: dict[str, int]) -> None:
    """Place what puts together results of one machine there, too, so that one tensor leaves it and not several."""
    for op in graph.ops:
        made = [graph.producers[name] for name in op.inputs if name in graph.producers]
        machines = {placed.get(maker, -1) for maker in made}
        if len(made) > 1 and len(machines) == 1 and op.name not in placed and -1 not in machines:
            placed[op.name] = machines.pop()
