"""`PortionSum`: what portions of a batch come to, added up in the order of a tree, whoever has computed what.

Floating point sums depend on their order. Here neighbours are added two by two, then the sums of two, and so on, so the
total has the same bits however the portions are shared out, and what one process has added up itself need not travel.
Node (level, index) of the tree is the sum of leaves [index * 2^level, (index + 1) * 2^level), those that there are.
"""

from torch import Tensor

Node = tuple[int, int]


class PortionSum:
    """Of `count` leaves, each of one part of a vector. Every leaf counts once, however often it comes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._root = (max(count - 1, 0)).bit_length()
        self._nodes: dict[Node, Tensor] = {}

    @property
    def total(self) -> Tensor | None:
        """The sum of all leaves; None while some are missing."""
        return self._nodes.get((self._root, 0))

    def add(self, level: int, index: int, part: Tensor) -> None:
        """A node has come, whose tensor is not written any more. ValueError where there is none such."""
        if not (0 <= level <= self._root and 0 <= index << level < self._count):
            raise ValueError(f"node {index} of level {level}, of {self._count} leaves")
        if any((above, index >> (above - level)) in self._nodes for above in range(level, self._root + 1)):
            return
        for low, at in [node for node in self._nodes if node[0] < level and node[1] >> (level - node[0]) == index]:
            del self._nodes[low, at]
        while level < self._root:
            other = index ^ 1
            if other << level < self._count:
                found = self._nodes.pop((level, other), None)
                if found is None:
                    break
                part = part + found if other > index else found + part
            level, index = level + 1, index >> 1
        self._nodes[level, index] = part

    def __repr__(self) -> str:
        return f"PortionSum({sorted(self._nodes)} of {self._count} leaves)"


def leaves(level: int, index: int, count: int) -> range:
    """The leaves under a node."""
    return range(index << level, min((index + 1) << level, count))
