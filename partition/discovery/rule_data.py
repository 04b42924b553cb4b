"""`FoundRule`: what running an operator has shown, as data: which dimensions of operands follow which of the result."""

from dataclasses import dataclass, field

from .operator_call import PlainSize


@dataclass(frozen=True)
class FoundLabel:
    """Dimensions that are cut together.

    output: the dimension of the result; None where the parts are added up. operands: (operand, dimension). sizes: plain
    arguments that are the size of a part.
    """

    output: int | None
    operands: tuple[tuple[str, int], ...]
    sizes: tuple[PlainSize, ...] = field(default=())


@dataclass(frozen=True)
class FoundRule:
    """All labels of an operator, which may be cut jointly."""

    labels: tuple[FoundLabel, ...]
