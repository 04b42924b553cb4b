"""Where in the model's own code something comes from."""

import os
import traceback

import torch
from torch.fx import Node

TORCH = os.path.dirname(torch.__file__)
HERE = os.path.dirname(os.path.dirname(__file__))


def source_line(node: Node) -> str:
    """File and line of the model's code that led to a node, as "model.py:12"; empty where there is none."""
    trace = (node.meta.get("stack_trace") or "").splitlines()
    lines = [line.strip() for line in trace if line.strip().startswith("File")]
    mine = [line for line in lines if TORCH not in line and HERE not in line and '"<' not in line]
    if not mine:
        return ""
    file, _, rest = mine[-1].removeprefix("File ").partition(", line ")
    return f"{os.path.basename(file.strip(chr(34)))}:{rest.partition(',')[0]}"


def module_path(node: Node) -> str:
    """The path of the submodule that a node belongs to, as in the model's parameter names."""
    return next(iter(module_paths(node)), "")


def module_paths(node: Node) -> list[str]:
    """The paths of all submodules around a node, the innermost first; the model's own is empty."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return [str(path).removeprefix("L['self'].").removeprefix("model").lstrip(".") for path, _ in reversed(stack)]


def where(error: BaseException) -> str:
    """The innermost line outside torch that led to an error, as " at model.py:12 (code)"; empty where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if not f.filename.startswith((TORCH, HERE, "<"))]
    cause = error.__cause__ or error.__context__
    if not mine:
        return where(cause) if cause is not None else ""
    return f" at {mine[-1].filename}:{mine[-1].lineno} ({(mine[-1].line or '').strip()})"


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind where it says nothing."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
