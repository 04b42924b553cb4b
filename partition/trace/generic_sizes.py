"""What torch's own code assumes of a size that depends on data: that it is none of the special ones, such as 0 or 1,
equal to no other, and within all limits.

Torch's operators ask of the sizes of their operands whether they are empty, or broadcast, to take a short cut or to
refuse them. In a trace they may go the general way, as what runs later is the operator itself. Where the model's code
asks, a trace would have one of two branches: this stays an error.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from sympy import Expr
from sympy.logic.boolalg import Boolean  # type: ignore[import-untyped]
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

_OF_NUMBERS = os.path.join(os.path.dirname(torch.__file__), "__init__.py")  # SymInt, SymBool
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LARGE = 10_007  # sizes that are compared for equality are different primes from here on
_SMALL = 2  # those that are compared with limits


@contextlib.contextmanager
def assume_generic_sizes() -> Iterator[None]:
    """Let torch's own code take sizes that depend on data for large and unlike ones, while it is active."""
    evaluate = ShapeEnv.evaluate_expr

    def evaluate_generically(self: ShapeEnv, orig_expr: Expr, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(self, orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            if not isinstance(orig_expr, Boolean) or not orig_expr.free_symbols <= self.size_like or _user_asks():
                raise
            return _evaluate_generically(orig_expr)

    ShapeEnv.evaluate_expr = evaluate_generically  # type: ignore[method-assign]
    try:
        yield
    finally:
        ShapeEnv.evaluate_expr = evaluate  # type: ignore[method-assign]


def _evaluate_generically(expression: Expr) -> Any:
    symbols = sorted(expression.free_symbols, key=str)
    if expression.has(sympy.Eq, sympy.Ne):
        sizes = [sympy.nextprime(_LARGE, number) for number in range(1, len(symbols) + 1)]
    else:
        sizes = [_SMALL] * len(symbols)
    return expression.xreplace({symbol: sympy.Integer(size) for symbol, size in zip(symbols, sizes, strict=True)})


def _user_asks() -> bool:
    """Whether a condition is evaluated because a line outside of torch makes a Python value of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_back
        if frame.f_code.co_filename == _OF_NUMBERS and caller is not None:
            return not caller.f_code.co_filename.startswith(_TORCH)
        frame = caller
    return False
