"""Has torch.fx write no Python code for the graphs of an export, of which only the nodes are wanted."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule
from torch.fx.graph import PythonCode, _PyTreeCodeGen


@contextlib.contextmanager
def defer_code() -> Iterator[None]:
    """While it is active, a graph module gets its code when it is called, or when somebody looks at the code."""
    recompile = GraphModule.recompile

    def forward(module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        recompile(module)
        return type(module).forward(module, *args, **kwargs)

    def defer(module: GraphModule) -> PythonCode | None:
        codegen = module._graph._codegen
        if isinstance(codegen, _PyTreeCodeGen):
            module._in_spec, module._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
        module._code = ""
        type(module).forward = forward
        return None

    GraphModule.recompile = defer  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        GraphModule.recompile = recompile  # type: ignore[method-assign]
