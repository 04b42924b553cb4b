"""Runs code in the middle of a trace as if there were none."""

import contextlib
from collections.abc import Iterator

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def suspend_trace() -> Iterator[None]:
    """Run without the modes that watch the trace."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            stack.enter_context(_pop_mode_temporarily())
        stack.enter_context(say_whether_exporting(False))
        yield


@contextlib.contextmanager
def say_whether_exporting(exporting: bool) -> Iterator[None]:
    """Have torch say so to the model's code, which may do something else in an export: make a mask that it leaves out.

    So all runs of the code are like the one that is exported. The flags are those of the process: see
    `known_conditions.draw_what_matters`, which has one thread trace at a time.
    """
    flags = vars(torch.compiler)
    before = {name: flags[name] for name in ("_is_compiling_flag", "_is_exporting_flag")}
    flags.update(dict.fromkeys(before, exporting))
    try:
        yield
    finally:
        flags.update(before)
