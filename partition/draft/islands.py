"""Gathers operators whose sizes depend on data into islands, as small as can be: up to the next fixed sizes.

An island is one operator of the graph (operators.island). All that hangs together by a tensor or a number of dynamic
size is in one island, and so is what lies between two of its operators, since an operator can neither wait for its own
result nor draw random numbers, or overwrite a buffer, in two goes.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import networkx as nx
from networkx.utils import UnionFind

from ...errors import BadInput
from ..ir.random_ops import GENERATOR_BYTES
from ..operators.island import ISLAND, IslandForm, IslandStep, encode_form
from ..operators.leaf_module import TensorSpec
from ..operators.sharding.signature import DraftTensor
from .accumulated_sums import split_sums
from .draft import Draft, DraftOp, draws, drop_unneeded
from .island_cost import RowDensities, count_flops
from .routed_rows import route_rows

DYNAMIC_KINDS = ("dynamic", "number")


def gather_islands(draft: Draft) -> Draft:
    """Return the draft with one operator for each island, between those that route rows to it and back.

    All stand in an order in which they can run.
    """
    _demand_fixed_results(draft)
    ops = split_sums(drop_unneeded(draft), draft, lambda op: _is_dynamic(op, draft))
    dynamic = {i for i, op in enumerate(ops) if _is_dynamic(op, draft)}
    if not dynamic:
        return draft
    groups, densities = _group(ops, dynamic, draft), RowDensities(ops, draft)
    makers = {name: op for op in ops for name in op.outputs}
    tensors = {name: tensor for name, tensor in draft.tensors.items() if tensor.kind not in DYNAMIC_KINDS}
    gathered = Draft(tensors, [], draft.results)
    for members in groups:
        if dynamic.isdisjoint(members):
            gathered.ops += [ops[i] for i in members]
        else:
            island = _make_island([ops[i] for i in members], ops, draft, gathered)
            gathered.ops += route_rows(island, makers, draft, gathered, densities)
    return gathered


def _demand_fixed_results(draft: Draft) -> None:
    kinds = [draft.tensors[name].kind for name in draft.results]
    if any(kind in DYNAMIC_KINDS for kind in kinds):
        raise BadInput(
            "E320",
            "what is read of the model's output has a size that depends on data",
            fix="let the model return a tensor of a fixed size, and a mask; or train it uncut, with --machines 1",
        )


def _is_dynamic(op: DraftOp, draft: Draft) -> bool:
    names = (*op.outputs, *op.operands.values())
    return any(draft.tensors[name].kind in DYNAMIC_KINDS for name in names)


def _group(ops: Sequence[DraftOp], dynamic: set[int], draft: Draft) -> list[list[int]]:
    """Return the numbers of the operators, those of an island together, in an order in which they can run."""
    maker = {name: i for i, op in enumerate(ops) for name in op.outputs}
    island = UnionFind(range(len(ops)))
    order = set[tuple[int, int]]()
    for i, op in enumerate(ops):
        for name in op.operands.values():
            if name in maker:
                order.add((maker[name], i))
                if draft.tensors[name].kind in DYNAMIC_KINDS:
                    island.union(maker[name], i)
    order |= set(pairwise(i for i, op in enumerate(ops) if draws(op)))
    for buffer in {name for op in ops for name in op.writes}:
        touching = [i for i, op in enumerate(ops) if buffer in (*op.writes, *op.operands.values())]
        order |= set(pairwise(touching))
    of_islands = nx.DiGraph()
    of_islands.add_nodes_from(island[i] for i in range(len(ops)))
    of_islands.add_edges_from((island[a], island[b]) for a, b in order if island[a] != island[b])
    acyclic = nx.condensation(of_islands)  # what lies on a circle through an island becomes part of it
    members: dict[int, list[int]] = {c: [] for c in acyclic}
    for i in range(len(ops)):
        members[acyclic.graph["mapping"][island[i]]].append(i)
    first = {c: inside[0] for c, inside in members.items()}
    return [members[c] for c in nx.lexicographical_topological_sort(acyclic, key=first.__getitem__)]


def _make_island(members: Sequence[DraftOp], ops: Sequence[DraftOp], draft: Draft, gathered: Draft) -> DraftOp:
    """Return the operator of an island. ops: all operators, its members among them; its results enter `gathered`."""
    made = {name for op in members for name in op.outputs}
    operands = tuple(dict.fromkeys(n for op in members for n in op.operands.values() if n not in made))
    inside = {op.name for op in members}
    wanted = {n for op in ops if op.name not in inside for n in op.operands.values()}
    results = tuple(name for op in members for name in op.outputs if name in wanted.union(draft.results))
    steps = tuple(IslandStep(op.target, op.arguments, op.outputs) for op in members)
    specs = tuple(TensorSpec(t.shape, t.stride, t.dtype) for t in map(draft.tensors.__getitem__, results))
    form = IslandForm(steps, operands, results, specs)
    random, name = any(map(draws, members)), f"island_{members[0].name}"
    outputs = results
    if random:
        state = DraftTensor(f"{name}.state", (GENERATOR_BYTES,), "uint8", "value", (1,), 1)
        gathered.tensors[state.name] = state
        outputs = (*results, state.name)
    arguments: dict[str, Any] = {
        "operands": [{"tensor": name} for name in operands],
        "draws": random,
        "flops": count_flops(form, ops, draft),
        "form": encode_form(form),
    }
    writes = tuple(dict.fromkeys(name for op in members for name in op.writes))
    first = members[0]
    return DraftOp(name, ISLAND, arguments, outputs, _common_module(members), first.source, writes)


def _common_module(members: Iterable[DraftOp]) -> str:
    """Return the path of the innermost module that holds all operators."""
    paths = [op.module.split(".") if op.module else [] for op in members]
    common = paths[0]
    for path in paths[1:]:
        length = next((i for i, (a, b) in enumerate(zip(common, path, strict=False)) if a != b), len(path))
        common = common[:length]
    return ".".join(common)
