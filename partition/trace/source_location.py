"""Finds the line of the model's own code that an operator or an error comes from."""

import os
import traceback

from torch.fx import Node

from .user_frames import is_users_file


def source_line(node: Node) -> str:
    """Return file and line of the model's code that led to a node, as "model.py:12"; "" where there is none."""
    trace = (node.meta.get("stack_trace") or "").splitlines()
    lines = [line.strip() for line in trace if line.strip().startswith("File")]
    places = [line.removeprefix("File ").partition(", line ") for line in lines]
    users = [(file.strip(chr(34)), rest) for file, _, rest in places if is_users_file(file.strip(chr(34)))]
    if not users:
        return ""
    file, rest = users[-1]
    return f"{os.path.basename(file)}:{rest.partition(',')[0]}"


def module_path(node: Node) -> str:
    """Return the path of the submodule that a node belongs to, as in the model's parameter names."""
    return next(iter(module_paths(node)), "")


def module_paths(node: Node) -> list[str]:
    """Return the paths of all submodules around a node, the innermost first; the model's own is empty."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return [_name_in_model(str(path).removeprefix("L['self'].")) for path, _ in reversed(stack)]


def _name_in_model(path: str) -> str:
    """Return the name of a part of a step as the user knows it; parts of the loss bear its name."""
    return "(loss)" if path.split(".")[0] == "criterion" else path.removeprefix("model").lstrip(".")


def describe_location(error: BaseException) -> str:
    """Return the innermost line of the user's code that led to an error, as " at model.py:12 (code)", or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if is_users_file(f.filename)]
    cause = error.__cause__ or error.__context__
    if not users:
        return describe_location(cause) if cause is not None else ""
    return f" at {users[-1].filename}:{users[-1].lineno} ({(users[-1].line or '').strip()})"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class where it has none."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
