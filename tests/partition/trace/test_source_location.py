"""Which line an error is said to come from."""

import contextlib

import pytest
import torch
from torch.fx import Graph

from cutset.partition.trace.source_location import describe_location, source_line


def test_lines_of_torch_and_of_pythons_library_are_passed_over() -> None:
    with pytest.raises(RuntimeError, match="didn't yield") as raised:
        contextlib.contextmanager(lambda: iter(()))().__enter__()  # type: ignore[arg-type]
    assert describe_location(raised.value).startswith(f" at {__file__}:")


def test_a_node_comes_from_a_line_of_the_user() -> None:
    node = Graph().placeholder("x")
    library = f'File "{contextlib.__file__}", line 81, in inner\n  return func()'
    of_torch = f'File "{torch.__file__}", line 5, in f\n  return g()'
    node.meta["stack_trace"] = f'File "/home/me/net.py", line 12, in forward\n  y = f(x)\n{library}\n{of_torch}'
    assert source_line(node) == "net.py:12"
    node.meta["stack_trace"] = library
    assert source_line(node) == ""
