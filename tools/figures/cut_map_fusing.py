"""The nodes of the cut map: operators as they are drawn. Light ones join the one that they follow, or others alike."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ...partition.placement.placement_file import OpPlacement, Placement

_HEAVY = re.compile(r"linear|conv|mm|matmul|einsum|attention|embedding|lstm|gru|rnn|local|unfold", re.IGNORECASE)
_LIGHT_SHARE = 0.02
_MAX_TAIL = 7
_LIBRARY = frozenset(("aten", "torch", "ops", "default", "Tensor", "Scalar", "int", "dim", "using_ints"))
_SHORT = {
    "scaled_dot_product_attention": "attention",
    "cross_entropy_loss": "cross entropy",
    "layer_norm": "norm",
    "native_layer_norm": "norm",
    "batch_norm": "norm",
    "max_pool2d_with_indices": "max_pool2d",
}


@dataclass(frozen=True)
class MapNode:
    """One box of the map: a leading operator and the light ones fused to it.

    inputs: positions of its inputs. copies: the operators of the same box in layers that are alike and not drawn.
    """

    ops: tuple[OpPlacement, ...]
    inputs: tuple[int, ...]
    copies: tuple[tuple[OpPlacement, ...], ...] = ()

    def list_all(self) -> Iterator[OpPlacement]:
        """The operators that are drawn, and those that are folded into them."""
        return chain(self.ops, *self.copies)


def shorten_name(op: OpPlacement) -> str:
    """The operator's kind without its library: "aten.linear.default" -> "linear"."""
    kinds = [part.strip("_") for part in op.op.split(".") if part not in _LIBRARY]
    kind = kinds[-1] if kinds else op.op
    return _SHORT.get(kind, kind)


def title_node(node: MapNode) -> str:
    """Name the leading operator, and how many layers have one like it: "linear × 12"."""
    return shorten_name(node.ops[0]) + count_node(node)


def count_node(node: MapNode) -> str:
    """Return " × 12" of a node that stands for twelve, "" of any other."""
    return f" × {1 + len(node.copies)}" if node.copies else ""


def is_light(op: OpPlacement, heaviest: float) -> bool:
    """Whether the operator does next to no work, as activations, views and dropout do."""
    return op.flops < _LIGHT_SHARE * heaviest and not _HEAVY.search(op.op)


def fuse_light_operators(placement: Placement) -> list[MapNode]:
    """Return the nodes in order of execution; a light operator joins the chain before it if no bytes cross there.

    Those that neither read nor are read, such as counts of batches, come last.
    """
    heaviest = max((op.flops for op in placement.ops), default=0.0)
    crossing = {item.tensor for item in placement.predicted.traffic}
    known = {op.name for op in placement.ops}
    readers = Counter(name for op in placement.ops for name in set(op.inputs))
    groups: list[list[OpPlacement]] = []
    home: dict[str, int] = {}
    for op in placement.ops:
        sources = {name for name in op.inputs if name in known}
        only = next(iter(sources)) if len(sources) == 1 else None
        group = groups[home[only]] if only in home else None
        joins = (
            group is not None
            and is_light(op, heaviest)
            and group[-1].name == only
            and readers[only] == 1
            and only not in crossing
            and len(group) <= _MAX_TAIL
        )
        if joins and group is not None and only is not None:
            group.append(op)
            home[op.name] = home[only]
        else:
            home[op.name] = len(groups)
            groups.append([op])
    is_read = {home[name] for op in placement.ops for name in op.inputs if name in home and home[name] != home[op.name]}
    nodes = [MapNode(tuple(group), _find_inputs(group, home, i)) for i, group in enumerate(groups)]
    order = sorted(range(len(nodes)), key=lambda i: not nodes[i].inputs and i not in is_read)
    place = {i: position for position, i in enumerate(order)}
    return [MapNode(nodes[i].ops, tuple(sorted(place[source] for source in nodes[i].inputs))) for i in order]


def _find_inputs(group: list[OpPlacement], home: dict[str, int], own: int) -> tuple[int, ...]:
    return tuple(sorted({home[name] for op in group for name in op.inputs if name in home and home[name] < own}))
