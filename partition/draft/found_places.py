"""Finds of an index whether it says where a tensor is not zero, as `torch.where(mask)` and `mask.nonzero()` do."""

from collections.abc import Mapping
from typing import NamedTuple

from ..operators.sharding.signature import DraftTensor
from .draft import Arguments, DraftOp

_FLAT = ("aten.flatten.using_ints", "aten.reshape.default", "aten.view.default", "aten.squeeze.dim")


class FoundColumn(NamedTuple):
    """The places where a tensor is not zero, of each its index in one dimension.

    mask: the name of the tensor; column: the dimension.
    """

    mask: str
    column: int


def find_column(name: str, makers: Mapping[str, DraftOp], tensors: Mapping[str, DraftTensor]) -> FoundColumn | None:
    """Return of what tensor an index, by its name, says where it is not zero; None where it is something else.

    makers: of all tensors, the operators that make them.
    """
    maker = makers.get(name)
    if maker is None:
        return None
    if maker.target == "aten.where.default":
        return _find_fixed(FoundColumn(maker.arguments["condition"]["tensor"], maker.outputs.index(name)), tensors)
    source = maker.arguments.get("self")
    finder = makers.get(source["tensor"]) if isinstance(source, dict) else None
    if finder is None or finder.target != "aten.nonzero.default":
        return None
    mask = finder.arguments["self"]["tensor"]
    rank = len(tensors[mask].shape)
    match maker.target:
        case "aten.select.int" if maker.arguments["dim"] in (1, -1):
            return _find_fixed(FoundColumn(mask, maker.arguments["index"]), tensors)
        case "aten.unbind.int" if maker.arguments["dim"] in (1, -1):
            return _find_fixed(FoundColumn(mask, maker.outputs.index(name)), tensors)
        case target if target in _FLAT and rank == 1 and _drops_column(maker.arguments):
            return _find_fixed(FoundColumn(mask, 0), tensors)
    return None


def _find_fixed(found: FoundColumn, tensors: Mapping[str, DraftTensor]) -> FoundColumn | None:
    """Return what was found, where the tensor is of a fixed size and has the dimension."""
    info = tensors[found.mask]
    return found if info.kind not in ("dynamic", "number") and 0 <= found.column < len(info.shape) else None


def _drops_column(arguments: Arguments) -> bool:
    """Whether an operator makes [n] of [n, 1]: squeeze(-1), reshape(-1) or flatten()."""
    sizes = arguments.get("shape", arguments.get("size"))
    if sizes is not None:
        return list(sizes) == [-1]
    if "start_dim" in arguments:
        return (arguments["start_dim"], arguments["end_dim"]) in ((0, -1), (0, 1))
    return arguments["dim"] in (1, -1)
