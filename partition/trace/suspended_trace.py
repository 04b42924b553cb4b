"""Runs code in the middle of a trace as if there were none."""

import contextlib
from collections.abc import Iterator

from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def suspend_trace() -> Iterator[None]:
    """Run without the modes that watch the trace."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            stack.enter_context(_pop_mode_temporarily())
        yield
