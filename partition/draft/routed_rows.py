"""Finds the rows that an island reads of a tensor, or fills in one, so that no others travel to it and back.

A tensor of which an island takes rows alone, `x[token]`, becomes a dispatch before the island; one that begins with
zeros and into which it puts rows, `out.index_add(0, token, y)`, becomes a combine after it (operators.routed_rows).
Which rows, a tensor of a fixed size says, where it is true or not zero: the island looks for these places.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..operators.island import IslandForm, IslandStep, decode_form
from ..operators.routed_rows import COMBINE, DISPATCH
from .draft import Draft, DraftOp
from .found_places import find_column
from .island_cost import RowDensities

MAX_DENSITY = 0.75  # where more rows are chosen, it is not worth the work to leave out the others

MIN_ROW = 8  # elements of a row, for which the bit that says whether it travels takes little

_FLOATING = ("float", "bfloat")
_ZEROS = {"aten.zeros_like.default": 0, "aten.zeros.default": 0, "aten.new_zeros.default": 0, "aten.full.default": None}
_TAKES = ("aten.index.Tensor", "aten.index_select.default")
_PUTS = ("aten.index_put.default", "aten.index_add.default")


class RoutedRows(NamedTuple):
    """Rows of a tensor: those along its dimensions from `dim` on for which another tensor is not zero anywhere.

    chosen: the name of this tensor; chosen_dims: its dimensions along which the rows lie.
    """

    chosen: str
    dim: int
    chosen_dims: tuple[int, ...]


def route_rows(
    island: DraftOp, makers: Mapping[str, DraftOp], draft: Draft, gathered: Draft, densities: RowDensities
) -> list[DraftOp]:
    """Return an island with dispatches before and combines after it, where its rows are known, and few.

    makers: of the draft's tensors. New tensors enter `gathered`.
    """
    form = decode_form(island.arguments["form"])
    found = _Finder(form, makers, draft)
    density = {rows: densities.measure(rows.chosen, rows.chosen_dims) for rows in found.list_rows()}
    few = {rows: share for rows, share in density.items() if share <= MAX_DENSITY}
    before, after, renamed = list[DraftOp](), list[DraftOp](), dict[str, str]()
    for name, rows in found.read.items():
        if rows in few:
            renamed[name] = f"{island.name}.{name}"
            before.append(_route(DISPATCH, rows, name, renamed[name], island))
            gathered.tensors[renamed[name]] = replace(
                draft.tensors[name], name=renamed[name], kind="value", density=few[rows]
            )
    for name, rows in found.filled.items():
        if rows in few:
            renamed[name] = f"{name}.filled"
            after.append(_route(COMBINE, rows, renamed[name], name, island))
            gathered.tensors[renamed[name]] = replace(draft.tensors[name], name=renamed[name], density=few[rows])
    operands = [{"tensor": renamed.get(name, name)} for name in form.operands]
    outputs = tuple(renamed.get(name, name) for name in island.outputs)
    return [*before, replace(island, arguments={**island.arguments, "operands": operands}, outputs=outputs), *after]


def _route(target: str, rows: RoutedRows, read: str, made: str, island: DraftOp) -> DraftOp:
    arguments: dict[str, Any] = {
        "self": {"tensor": read},
        "chosen": {"tensor": rows.chosen},
        "dim": rows.dim,
        "chosen_dims": list(rows.chosen_dims),
    }
    return DraftOp(made, target, arguments, (made,), island.module, island.source)


class _Finder:
    """The rows of the operands that an island reads by rows alone, and of the results that it fills by rows alone."""

    def __init__(self, form: IslandForm, makers: Mapping[str, DraftOp], draft: Draft) -> None:
        self._form, self._makers, self._tensors = form, makers, draft.tensors
        self.read = {name: rows for name in form.operands if (rows := self._find_read(name)) is not None}
        self.filled = {name: rows for name in form.results if (rows := self._find_filled(name)) is not None}

    def list_rows(self) -> list[RoutedRows]:
        """Return the different rows, in order."""
        return list(dict.fromkeys([*self.read.values(), *self.filled.values()]))

    def _find_read(self, name: str) -> RoutedRows | None:
        """Return the rows of an operand that all its readers take; None where one reads something else."""
        readers = [step for step in self._form.steps if _mentions(step.arguments, name)]
        found = {self._find_taken(step, name) for step in readers}
        return found.pop() if len(found) == 1 else None

    def _find_taken(self, step: IslandStep, name: str) -> RoutedRows | None:
        arguments = step.arguments
        if arguments.get("self") != {"tensor": name} or step.target not in _TAKES:
            return None
        return self._find_rows(name, arguments)

    def _find_filled(self, name: str) -> RoutedRows | None:
        step = self._makers[name]
        if step.target not in _PUTS or not self._is_zero(step.arguments["self"]["tensor"]):
            return None
        return self._find_rows(name, step.arguments)

    def _is_zero(self, name: str) -> bool:
        maker = self._makers.get(name)
        if maker is None or maker.target not in _ZEROS:
            return False
        return maker.arguments.get("fill_value", _ZEROS[maker.target]) == 0

    def _find_rows(self, name: str, arguments: Mapping[str, Any]) -> RoutedRows | None:
        """Return the rows of a tensor that the indices among an operator's arguments choose."""
        tensor = self._tensors[name]
        if tensor.kind != "value" or not tensor.dtype.startswith(_FLOATING):
            return None
        indices = _list_indices(arguments, len(tensor.shape))
        given = [d for d, index in enumerate(indices) if index is not None]
        parts = [self._find_index(indices[d]["tensor"]) for d in given]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts) or given != list(range(given[0], given[-1] + 1)):
            return None
        dims = [d for _, several in known for d in several]
        rows = RoutedRows(known[0][0], given[0], tuple(dims))
        alike = {chosen for chosen, _ in known} == {rows.chosen} and dims == sorted(set(dims))
        return rows if alike and self._fits(rows, tensor.shape) else None

    def _fits(self, rows: RoutedRows, shape: tuple[int, ...]) -> bool:
        """Whether there are as many rows in a tensor as places where they are chosen, each long enough."""
        end, chosen = rows.dim + len(rows.chosen_dims), self._tensors[rows.chosen].shape
        if shape[rows.dim : end] != tuple(chosen[d] for d in rows.chosen_dims):
            return False
        return end < len(shape) and math.prod(shape[end:]) >= MIN_ROW

    def _find_index(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the tensor an index of which says where it is not zero, and the dimensions along which it says so."""
        if name in self._form.operands and self._tensors[name].dtype == "bool":
            return name, tuple(range(len(self._tensors[name].shape)))
        found = find_column(name, self._makers, self._tensors)
        return None if found is None or found.mask not in self._form.operands else (found.mask, (found.column,))


def _list_indices(arguments: Mapping[str, Any], rank: int) -> list[Any]:
    """Return an index, or None for all, of each of a tensor's first dimensions, of whatever operator takes them."""
    if "indices" in arguments:
        return list(arguments["indices"])
    return [None] * (arguments["dim"] % rank) + [arguments["index"]]


def _mentions(arguments: Mapping[str, Any], name: str) -> bool:
    values = [item for value in arguments.values() for item in (value if isinstance(value, list) else [value])]
    return {"tensor": name} in values
