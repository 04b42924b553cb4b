"""Which tensors of a model's output are read by those who score it, found by having them read it once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..ir.output_layout import list_tensors


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which of some tensors become operands. numbers: of the tensors, by id."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers = numbers
        self.found = set[int]()

    def note(self, value: Any) -> None:
        """Note the tensors in a nested value."""
        self.found |= {self._numbers[id(leaf)] for leaf in tree_leaves(value) if id(leaf) in self._numbers}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.note((args, kwargs))
        return func(*args, **(kwargs or {}))


def find_read_tensors(output: Any, readers: Sequence[Callable[..., Any]], targets: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the numbers of the tensors of an output that anybody reads, and of the first one in any case.

    readers: called as `reader(output, *targets)`. One may fail, as those do that want values where there are none; then
    it may read all of them.
    """
    tensors = list_tensors(output)
    found = {0}
    for reader in readers:
        reads = _Reads({id(tensor): number for number, tensor in enumerate(tensors)})
        try:
            with reads:
                reads.note(reader(output, *targets))
        except Exception:  # whatever the user's code raises without values: it is called with values later, and blamed
            reads.found = set(range(len(tensors)))
        found |= reads.found
    return tuple(sorted(found))
