"""`TreeSum`: the sum of the gradients of portions, added up in the order of a binary tree, whoever computed what.

Floating-point sums depend on their order. Here neighbours are added two by two, then the sums of two, and so on. So the
total has the same bits however the portions are distributed, and what one process has added up itself need not travel.
Node (level, index) of the tree is the sum of leaves [index * 2^level, (index + 1) * 2^level), as far as they exist.
"""

from torch import Tensor

Node = tuple[int, int]


class TreeSum:
    """The sum of `count` leaves, each a tensor of the same shape. Every leaf counts once, however often it comes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._root = (max(count - 1, 0)).bit_length()
        self._nodes: dict[Node, Tensor] = {}

    @property
    def total(self) -> Tensor | None:
        """The sum of all leaves; None while some are missing."""
        return self._nodes.get((self._root, 0))

    def add(self, level: int, index: int, part: Tensor) -> None:
        """Take in a node, whose tensor must not be written any more. Raises ValueError if there is no such node."""
        if not (0 <= level <= self._root and 0 <= index << level < self._count):
            raise ValueError(f"node {index} of level {level}, of {self._count} leaves")
        if any((above, index >> (above - level)) in self._nodes for above in range(level, self._root + 1)):
            return
        for low, at in [node for node in self._nodes if node[0] < level and node[1] >> (level - node[0]) == index]:
            del self._nodes[low, at]
        while level < self._root:
            sibling = index ^ 1
            if sibling << level < self._count:
                other = self._nodes.pop((level, sibling), None)
                if other is None:
                    break
                part = part + other if sibling > index else other + part
            level, index = level + 1, index >> 1
        self._nodes[level, index] = part

    def __repr__(self) -> str:
        return f"TreeSum({sorted(self._nodes)} of {self._count} leaves)"


def leaves_under(level: int, index: int, count: int) -> range:
    """Return the leaves under a node of a tree of `count` leaves."""
    return range(index << level, min((index + 1) << level, count))
