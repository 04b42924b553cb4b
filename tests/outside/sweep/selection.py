"""`Entry`: a model that the sweep tries, and the rule by which the libraries' registries are read.

The rule, which was stated before anything ran:

1. torchvision: of all builders in `torchvision.models.list_models()`, those of one module whose names begin with the
   same letters ("resnet", "wide", "resnext") are a family. Of each family the one with the fewest parameters.
2. timm: of all models in `timm.list_models()`, the same.
3. transformers: every model type that has a class for one of the tasks in from_transformers.TASKS; of several classes
   that of the first task. Its configuration is the class's own default made small by name (small_configuration.py).
4. Weights are random and sizes small: the first of a fixed list of sizes and inputs (`Trial`) with which the library
   itself computes a step in plain torch, forward and backward, with a finite loss. A model for which none does is
   outside of the sweep and is listed with its reason.

Nobody picks a model or leaves one out by hand.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

BATCH = 4  # samples, so that four machines may have one each


@dataclass(frozen=True, order=True)
class Entry:
    """A model of a library. family: which it stands for. task: of transformers' classes, that of this one."""

    library: str
    name: str
    family: str = ""
    task: str = ""

    @property
    def key(self) -> str:
        """Return what the model is called in results."""
        return f"{self.library}/{self.name}"


@dataclass(frozen=True)
class Trial:
    """One way to run a model. inputs: makes them by the names of the arguments; `BATCH` samples each.

    says: which way, in words. loss_inside: whether the model computes its loss, as the first tensor of its output.
    """

    says: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], Mapping[str, Tensor]]
    loss_inside: bool = False


def name_family(module: str, name: str) -> str:
    """Return the family of a model: its module, and the letters with which its name begins."""
    letters = re.match(r"[a-zA-Z]*", name)
    assert letters is not None
    return f"{module.rpartition('.')[2]}:{letters[0].lower()}"


def choose_smallest(builders: Iterable[tuple[str, str, Callable[[], nn.Module]]]) -> Iterator[tuple[str, str]]:
    """Yield (family, name) of the model with the fewest parameters of each family. builders: (family, name, builder).

    Of several with as few, the first by name.
    """
    smallest: dict[str, tuple[int, str]] = {}
    for family, name, build in builders:
        least = smallest.get(family)
        size = count_parameters(build, limit=least[0] if least else None)
        if size is not None:
            smallest[family] = min(least or (size, name), (size, name))
    yield from ((family, name) for family, (_, name) in sorted(smallest.items()))


def interleave(groups: Iterable[list[Entry]]) -> list[Entry]:
    """Return all entries, one of each library in turn, so that the first ones are a sample of all."""
    return [entry for row in zip_longest(*groups) for entry in row if entry is not None]


class _TooManyError(Exception):
    """A model has more parameters than one that is known."""


def count_parameters(build: Callable[[], nn.Module], *, limit: int | None = None) -> int | None:
    """Return the parameters of a model, None where they are more than `limit`: then it is not built to its end.

    It is built without values where its code lets it.
    """
    count = 0

    def add(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        count += 0 if parameter is None else parameter.numel()
        if limit is not None and count > limit:
            raise _TooManyError

    hook = register_module_parameter_registration_hook(add)
    try:
        try:
            with torch.device("meta"):
                build()
        except (NotImplementedError, RuntimeError):  # its code looks at values
            count = 0
            build()
    except _TooManyError:
        return None
    finally:
        hook.remove()
    return count
