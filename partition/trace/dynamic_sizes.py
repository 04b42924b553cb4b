"""Sizes that depend on data, in a trace: what torch assumes of them.

Torch assumes that such a size is none of the special ones, such as 0 or 1, equal to no other, and within all limits.

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

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

_OF_NUMBERS = os.path.join(os.path.dirname(torch.__file__), "__init__.py")  # SymInt, SymBool
_TORCH = os.path.dirname(torch.__file__) + os.sep
_UNLIKE = (10_007, 10_009, 10_037, 10_039, 10_061, 10_067, 10_069, 10_079)  # primes, compared for equality
_SMALL = 2  # those that are compared with limits


@contextlib.contextmanager
def assume_generic_sizes() -> Iterator[None]:
    """Let torch's own code take sizes that depend on data for large and unlike ones, while it is active."""
    evaluate = ShapeEnv.evaluate_expr

    def evaluate_generically(self: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(self, orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            if not _is_generic(self, orig_expr) or _user_asks():
                raise
            return _evaluate_generically(orig_expr)

    ShapeEnv.evaluate_expr = evaluate_generically  # type: ignore[method-assign]
    try:
        yield
    finally:
        ShapeEnv.evaluate_expr = evaluate  # type: ignore[method-assign]


def _is_generic(env: ShapeEnv, expression: Any) -> bool:
    """Whether an expression of sympy is a condition on sizes alone."""
    is_condition = expression.is_Boolean or expression.is_Relational
    return bool(is_condition and expression.free_symbols <= env.size_like)


def _evaluate_generically(expression: Any) -> Any:
    """Return the value of a condition at sizes that are unlike, or small where they are compared with limits."""
    symbols = sorted(expression.free_symbols, key=str)
    compares_equality = any(name in str(expression) for name in ("Eq(", "Ne("))
    sizes = _UNLIKE if compares_equality else (_SMALL,) * len(symbols)
    return expression.subs(dict(zip(symbols, sizes, strict=False)))


def _user_asks() -> bool:
    """Whether a condition is evaluated because a line outside of torch makes a Python value of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_back
        if frame.f_code.co_filename == _OF_NUMBERS and caller is not None:
            return not caller.f_code.co_filename.startswith(_TORCH)
        frame = caller
    return False
