"""A model that torch.export cannot trace: which line, which module holds it, and which blocks by hand get around it."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from torch import nn

from ...errors import BadInput
from .leaf_selection import glob_for, inside

UNCUT = "train it uncut, data parallel only, with --machines 1"
REWRITE = "write branches on tensor values with torch.where"
ATTEMPTS = 24  # captures in search of blocks that help: a model in which more modules fail is one for --machines 1


class Untraceable(BadInput):
    """A line that cannot be traced.

    rewrite: what to write there instead. modules: names of those that hold the line, the innermost first; globs: what
    of them may become blocks by hand. offered: blocks by hand to copy. example: what to say where the line may as well
    be right and the example wrong; that is another error then, E321.
    """

    def __init__(
        self,
        facts: str,
        *,
        rewrite: str = REWRITE,
        modules: Sequence[str] = (),
        globs: Sequence[str] = (),
        offered: Sequence[str] = (),
        example: str = "",
    ) -> None:
        ways = [f"{named(offered)}, whose inside is then not traced", rewrite] if offered else [rewrite]
        fix = "check the example batch of the task, or --input" if example else "; or ".join([*ways, UNCUT])
        super().__init__("E321" if example else "E320", example or facts, fix=fix)
        self.traced, self.rewrite, self.example = facts, rewrite, example
        self.modules, self.globs = tuple(modules), tuple(globs)

    def at(self, modules: Sequence[str]) -> "Untraceable":
        """The same, raised in these modules."""
        return Untraceable(self.traced, rewrite=self.rewrite, modules=modules, example=self.example)

    def offering(self, globs: Sequence[str], blocks: Sequence[str]) -> "Untraceable":
        """The same with the innermost module that may become a block, beside `blocks`, to copy."""
        offered = (*blocks, *globs[:1]) if globs else ()
        return Untraceable(
            self.traced,
            rewrite=self.rewrite,
            modules=self.modules,
            globs=globs,
            offered=offered,
            example=self.example,
        )

    def solved(self, blocks: Sequence[str] | None) -> "Untraceable":
        """The same with blocks that were tried; None where none helped."""
        if blocks is None:
            rewrite = f"{self.rewrite}; or put it into a module whose results have fixed shapes, for --blocks"
            return Untraceable(self.traced, rewrite=rewrite, modules=self.modules, example=self.example)
        return Untraceable(self.traced, rewrite=self.rewrite, modules=self.modules, offered=blocks)


def named(blocks: Sequence[str]) -> str:
    """Blocks by hand as they stand on a command line."""
    return " ".join(f"--blocks '{glob}'" for glob in blocks)


def holding(error: BaseException, model: nn.Module) -> tuple[str, ...]:
    """Names of the modules of `model` in which an error was raised, the innermost first."""
    names = {id(module): name for name, module in model.named_modules() if name}
    found = dict.fromkeys(names[i] for i in _modules(error.__traceback__) if i in names)
    cause = error.__cause__ or error.__context__
    if not found and cause is not None:
        return holding(cause, model)
    return tuple(reversed(found))


def offered(model: nn.Module, names: Sequence[str], blocks: Sequence[str]) -> tuple[str, ...]:
    """Globs for modules that may become blocks: those that are none yet, nor part of one."""
    free = [name for name in names if not any(name == block or inside(name, block) for block in blocks)]
    return tuple(dict.fromkeys(glob_for(model, name) for name in free))


def _modules(traceback: TracebackType | None) -> list[int]:
    """The modules whose methods were running, outermost first, by id."""
    found: list[Any] = []
    while traceback is not None:
        found.append(traceback.tb_frame.f_locals.get("self"))
        traceback = traceback.tb_next
    return [id(value) for value in found if isinstance(value, nn.Module)]


def way_out(
    error: Untraceable, blocks: Sequence[str], attempt: Callable[[tuple[str, ...]], object]
) -> tuple[str, ...] | None:
    """Blocks by hand with which the model can be traced, the innermost that do; None where none were found.

    attempt: captures the model with blocks, and raises BadInput where it cannot.
    """
    found, candidates = tuple(blocks), list(error.globs)
    for _ in range(ATTEMPTS):
        if not candidates:
            return None
        tried = (*found, candidates.pop(0))
        try:
            attempt(tried)
        except Untraceable as again:
            found, candidates = tried, list(again.globs)
        except BadInput:  # this module does not suit; the one around it may
            continue
        else:
            return tried
    return None
