"""A model that torch.export cannot trace: which line, which module holds it, and which leaf modules get around it."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ...errors import BadInput
from ..operators.step_module import PARTS
from ..trace.recurrent_stand_ins import NoBackwardError
from ..trace.repeated_steps import Difference, RepeatedSteps
from ..trace.source_location import describe_location, first_line, module_paths, source_line
from ..trace.user_frames import CodeLine
from .leaf_selection import find_glob, is_inside

UNCUT = "train it uncut, data parallel only, with --machines 1"
# Raised in a run without data alone.
WITHOUT_DATA = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    NoBackwardError,
)
REWRITE = "write branches on tensor values with torch.where"


class Untraceable(BadInput):
    """The error E320: a line of the model that cannot be traced.

    rewrite: what to write there instead. modules: names of those that hold the line, the innermost first. globs: those
    of them that may become leaf modules. others: the innermost modules that hold further lines, each to blame for
    itself; other_globs: globs for these. suggested: leaf modules that the error suggests. example: the message where
    the line may as well be right and the example batch wrong, which makes it E321.
    """

    def __init__(
        self,
        facts: str,
        *,
        rewrite: str = REWRITE,
        modules: Sequence[str] = (),
        globs: Sequence[str] = (),
        others: Sequence[str] = (),
        other_globs: Sequence[str] = (),
        suggested: Sequence[str] = (),
        example: str = "",
    ) -> None:
        ways = [rewrite]
        if suggested:
            ways.insert(0, f"{format_leaf_modules(suggested)}, whose inside is then not traced")
        fix = "check the example batch of the task, or --input" if example else "; or ".join([*ways, UNCUT])
        super().__init__("E321" if example else "E320", example or facts, fix=fix)
        self.traced, self.rewrite, self.example = facts, rewrite, example
        self.modules, self.globs = tuple(modules), tuple(globs)
        self.others, self.other_globs = tuple(others), tuple(other_globs)

    def in_modules(self, modules: Sequence[str]) -> "Untraceable":
        """Return the same error, raised in these modules."""
        return Untraceable(self.traced, rewrite=self.rewrite, modules=modules, example=self.example)

    def suggest(
        self, globs: Sequence[str], leaf_modules: Sequence[str], other_globs: Sequence[str] = ()
    ) -> "Untraceable":
        """Return the same error, suggesting `leaf_modules` and the innermost modules that may become some."""
        beside = [glob for glob in other_globs if glob not in globs]
        suggested = (*leaf_modules, *globs[:1], *beside) if globs else ()
        return Untraceable(
            self.traced,
            rewrite=self.rewrite,
            modules=self.modules,
            globs=globs,
            others=self.others,
            other_globs=beside,
            suggested=suggested,
            example=self.example,
        )

    def without_solution(self) -> "Untraceable":
        """Return the same error where no leaf module has helped."""
        rewrite = f"{self.rewrite}; or put it into a module whose results have fixed shapes, for --leaf-modules"
        return Untraceable(self.traced, rewrite=rewrite, modules=self.modules, example=self.example)


def format_leaf_modules(leaf_modules: Sequence[str]) -> str:
    """Return leaf modules as options of a command line."""
    return " ".join(f"--leaf-modules '{glob}'" for glob in leaf_modules)


def untraceable_node(node: Node, facts: str, *, fix: str) -> Untraceable:
    """Return the error of a node of the trace that has no canonical form, with its source line and its modules."""
    modules = [path for path in module_paths(node) if path]
    there = f", in module {modules[0]}" if modules else ""
    facts = f"the model cannot be traced at {source_line(node) or node.name}{there}: {facts}"
    return Untraceable(facts, rewrite=fix, modules=modules)


def refuse_difference(steps: RepeatedSteps, model: nn.Module, tell: Callable[[str], None]) -> None:
    """Raise Untraceable if not all steps compute the same; tell which attributes they change without an effect."""
    if steps.difference is not None:
        raise _untraceable_difference(steps.difference, model)
    if steps.changes:
        names = ", ".join(change.described for change in steps.changes)
        tell(f"every step changes {names}; the first {steps.count} compute the same, and so will all that are planned")


def _untraceable_difference(difference: Difference, model: nn.Module) -> Untraceable:
    names = {id(module): name for name, module in model.named_modules() if name}
    code_line, *others = difference.places or [CodeLine("", ())]
    modules = [names[module] for module in code_line.modules if module in names]
    inner = [next((names[module] for module in other.modules if module in names), "") for other in others]
    modules = modules or [change.module for change in difference.changes if change.module]
    at = f" at {code_line.line}" if code_line.line else ""
    there = f", in module {modules[0]} ({type(model.get_submodule(modules[0])).__name__})" if modules else ""
    if difference.draws:
        facts = f"the model draws random numbers of Python or numpy{at}{there}, which a trace would draw once for all"
        return Untraceable(facts, rewrite="draw with torch.rand, and choose with torch.where")
    left = ", ".join(dict.fromkeys(change.described for change in difference.changes))
    why = f": a step leaves something for the next in {left}" if left else ""
    facts = f"the model does not compute the same in every step{at}{there}{why}"
    rewrite = "keep what changes in a buffer, and change it in place"
    return Untraceable(facts, rewrite=rewrite, modules=modules, others=[name for name in inner if name])


def find_modules_of(error: BaseException, model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules of `model` in which an error was raised, the innermost first."""
    names = {id(module): name for name, module in model.named_modules() if name}
    running = dict.fromkeys(names[i] for i in _running_modules(error.__traceback__) if i in names)
    cause = error.__cause__ or error.__context__
    if not running and cause is not None:
        return find_modules_of(cause, model)
    return tuple(reversed(running))


def find_leaf_globs(model: nn.Module, names: Sequence[str], leaf_modules: Sequence[str]) -> tuple[str, ...]:
    """Return globs for the modules `names` that may become leaf modules: those neither one yet nor part of one.

    The loss, which is no module of the model, goes by its own name, and so do its parts.
    """
    free = [name for name in names if not any(name == leaf or is_inside(name, leaf) for leaf in leaf_modules)]
    outer = [part if (part := name.split(".")[0]) in PARTS else name for name in free]
    return tuple(dict.fromkeys(name if name in PARTS else find_glob(model, name) for name in outer))


def _running_modules(traceback: TracebackType | None) -> list[int]:
    """Return the ids of the modules whose methods were running, outermost first."""
    owners: list[Any] = []
    while traceback is not None:
        owners.append(traceback.tb_frame.f_locals.get("self"))
        traceback = traceback.tb_next
    return [id(value) for value in owners if isinstance(value, nn.Module)]


def describe_failure(error: Exception, model: nn.Module, *, example: str = "") -> Untraceable:
    """Return the E320 of an exception in a trace. example: see `Untraceable`."""
    modules = find_modules_of(error, model)
    there = f", in module {modules[0]} ({type(model.get_submodule(modules[0])).__name__})" if modules else ""
    is_branch = isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode)
    reason = "it branches on a value, or on a size that depends on data" if is_branch else first_line(error)
    facts = f"the model cannot be traced{describe_location(error)}{there}: {reason}"
    return Untraceable(facts, modules=modules, example=example)
